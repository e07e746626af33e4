"""Measure what README states: search time, gap, counts and memory of PPO on 64 GPUs, and the start-up time.

    python benchmarks/figures.py [--json]

Times are printed beside their bars and never fail a run: machines are shared and noisy. What does not depend on the
machine (gap, counts, memory) must hold, else the exit code is 1.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RPEGC = [sys.executable, "-c", "from rpegc.cli import main; main()"]


def timed(*arguments: str) -> tuple[float, float]:
    """Return wall and processor seconds of one command line, its own and its children's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run([*RPEGC, *arguments], check=True, capture_output=True, cwd=ROOT, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, processor


def main() -> int:
    """Print the figures; return 1 if one that must hold does not."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "plan"
        wall, processor = timed("compile", "examples/ppo_llama31_8b.yaml", "-o", str(folder))
        memory_gb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    starts = sorted(timed("--help") for _ in range(5))
    search = plan["search"]
    rows = [
        ("PPO on 64 GPUs, space default: wall seconds with start-up", wall, "<", 20.0, False),
        ("the same, processor seconds", processor, "<", 40.0, False),
        ("the same, proven gap", plan["gap"], "<=", 0.01 + 0.001 / plan["period_s"], True),
        ("the same, layouts before pruning", search["layouts"], ">=", 100_000, True),
        ("the same, mesh classes", search["meshes"], ">=", 20, True),
        ("the same, peak memory in GB", memory_gb, "<", 1.0, True),
        ("rpegc --help, wall seconds (median of 5)", starts[2][0], "<", 0.4, False),
    ]
    holds = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}
    failed = False
    report = []
    for name, value, sign, bar, must in rows:
        good = holds[sign](value, bar)
        failed |= must and not good
        report.append({"figure": name, "value": value, "bar": f"{sign} {bar:g}", "holds": good})
    if "--json" in sys.argv[1:]:
        print(json.dumps(report, indent=2))
    else:
        for row in report:
            print(f"{row['figure']:<60} {row['value']:>12,.4g}   {row['bar']:<10} {'' if row['holds'] else 'MISSED'}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
