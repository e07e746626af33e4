"""Measure how many generation layouts are priced a second on one core, for a dense model and a mixture of experts.

    OMP_NUM_THREADS=1 python benchmarks/pricing_generation.py [--json]

A price is the whole table: times by term, memory by term, completion curve, signatures. The bar (20,000 a second) is
printed beside the figure and never fails a run: machines are shared and noisy. The figure is the best of three runs.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np

from rpegc.cost.generation import price_generation
from rpegc.cost.work import StageWork
from rpegc.frontend.hf_config import load_architecture
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import MeshClass, with_mesh

BAR = 20_000
MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3")
MESH = MeshClass(16, 4)


def layouts() -> dict[str, np.ndarray]:
    """Return some twenty thousand engine layouts of 64 GPUs as columns."""
    rows = [
        (tp, dp, sequences, share, tokens, precision, offload)
        for tp, dp in ((1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4))
        for sequences, share, tokens, precision, offload in itertools.product(
            (32, 64, 128, 256, 384, 512, 768, 1024),
            np.linspace(0.3, 0.9, 16),
            (2048, 4096, 8192, 16384),
            (0, 1),
            (0, 1),
        )
    ]
    tp, dp, sequences, share, tokens, precision, offload = (np.array(column) for column in zip(*rows, strict=True))
    columns = {
        "replicas": 64 // (tp * dp),
        "engine_dp": dp,
        "tp": tp,
        "pp": np.ones_like(tp),
        "ep": np.ones_like(tp),
        "max_sequences": sequences,
        "memory_fraction": share,
        "batched_tokens": tokens,
        "precision": precision,
        "offload": offload.astype(bool),
    }
    return with_mesh(columns, MESH)


def rate(model: str) -> float:
    """Return priced layouts a second."""
    machine = load_machine("gh200-alps")
    work = StageWork(
        stage="generate",
        op=Op.GENERATE,
        role="actor",
        architecture=load_architecture(model, Path("."), None),
        framework="verl",
        engine_class="fsdp",
        prompts=512,
        samples_per_prompt=16,
        minibatches=1,
        epochs=1,
        prompt_tokens=Lengths.from_mean(300, 1024),
        response_tokens=Lengths.from_mean(3000, 16384),
    )
    columns = layouts()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        price_generation(work, MESH, columns, machine)
        best = min(best, time.perf_counter() - start)
    return len(columns["tp"]) / best


def main() -> int:
    """Print the rates beside the bar."""
    report = [{"model": model, "layouts_per_s": round(rate(model)), "bar": BAR} for model in MODELS]
    if "--json" in sys.argv[1:]:
        print(json.dumps(report, indent=2))
        return 0
    for row in report:
        missed = "" if float(str(row["layouts_per_s"])) >= BAR else "MISSED"
        print(f"{row['model']:<28} {row['layouts_per_s']:>9,} layouts/s   >= {BAR:,} {missed}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
