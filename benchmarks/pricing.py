"""Measure how many training and forward layouts rpegc prices a second on one core, on the tables of real compilations.

    python benchmarks/pricing.py [--json]

Each example is compiled up to its price tables; then every table of a train or forward stage is priced again, as the
compiler does it: seconds, memory, signatures. Processor seconds of the best of three rounds count; the figure is
printed beside its bar and never fails a run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy is imported: one core

from rpegc.compiler import Options, setting_of, structures, variant_of
from rpegc.cost.price import price
from rpegc.frontend.load import load_pipeline
from rpegc.ir.graph import Op
from rpegc.search import tabulate

ROOT = Path(__file__).resolve().parent.parent
BAR = 200_000
ROUNDS = 3


def tables_of(example: Path) -> list[tuple[object, ...]]:
    """Return the arguments of every price that the compiler asks for: work, mesh class, layouts, machine."""
    asked: list[tuple[object, ...]] = []

    def recorded(*arguments: object) -> object:
        asked.append(arguments)
        return price(*arguments)  # type: ignore[arg-type]

    setting = setting_of(load_pipeline(example), Options())
    tabulate.price = recorded  # type: ignore[assignment]
    try:
        cache = tabulate.TableCache()
        for graph in structures(setting):
            variant_of(setting, graph, cache)
    finally:
        tabulate.price = price
    return [arguments for arguments in asked if arguments[0].op in (Op.TRAIN, Op.FORWARD)]  # type: ignore[attr-defined]


def main() -> int:
    """Print layouts a second for each example and for all."""
    report = []
    layouts_all, seconds_all = 0, 0.0
    for example in sorted((ROOT / "examples").glob("*.yaml")):
        tables = tables_of(example)
        layouts = sum(len(columns["tp"]) for _, _, columns, _ in tables)  # type: ignore[index]
        seconds = min(_processor_seconds(tables) for _ in range(ROUNDS))
        report.append({"example": example.name, "layouts": layouts, "layouts_per_s": layouts / seconds})
        layouts_all, seconds_all = layouts_all + layouts, seconds_all + seconds
    report.append({"example": "all", "layouts": layouts_all, "layouts_per_s": layouts_all / seconds_all})
    if "--json" in sys.argv[1:]:
        print(json.dumps(report, indent=2))
        return 0
    for row in report:
        print(f"{row['example']:<28} {row['layouts']:>9,} layouts {row['layouts_per_s']:>12,.0f} a second")
    print(f"bar: at least {BAR:,} a second{'' if layouts_all / seconds_all >= BAR else '   MISSED'}")
    return 0


def _processor_seconds(tables: list[tuple[object, ...]]) -> float:
    start = time.process_time()
    for arguments in tables:
        price(*arguments)  # type: ignore[arg-type]
    return time.process_time() - start


if __name__ == "__main__":
    raise SystemExit(main())
