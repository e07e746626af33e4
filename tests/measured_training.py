"""Published training rows as work and layout: shared by the tests of step time and of peak memory."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from rpegc.architecture import Architecture, paper_reference
from rpegc.cost.table import PriceTable
from rpegc.cost.training import price_training
from rpegc.cost.work import StageWork
from rpegc.frontend.hf_config import load_architecture
from rpegc.hardware import Figure, Machine, load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import MeshClass, ShardedLayout, columns_of

MEASURED = Path(__file__).parent / "data" / "measured"

MPT = {  # layers, hidden, heads: github.com/mosaicml/llm-foundry scripts/train/benchmarking
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
APERTUS = {"8B": (32, 4096, 21504, 32), "70B": (80, 8192, 43008, 64)}  # arXiv 2509.14233
MACHINES = {
    "A100-80": "a100-80g",
    "A100-40": "a100-80g",
    "H100": "h100-dgx",
    "H100-500W": "h100-dgx",
    "H200": "h200-dgx",
    "B200": "h200-dgx",  # only its memory rows are used
    "GH200": "gh200-alps",
}
VARIANTS = {  # sustained FLOP/s and achieved memory bandwidth of parts that are not in the catalogue
    "A100-40": (239e12, 1.3e12),
    "H100-500W": (451e12, 2.0e12),
}


def rows(name: str) -> list[dict[str, str]]:
    with (MEASURED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def architecture(model: str) -> Architecture:
    if model.startswith("MPT-"):
        layers, hidden, heads = MPT[model.removeprefix("MPT-")]
        return paper_reference(layers, hidden, 4 * hidden, heads, 50368)
    if model.startswith("Apertus-"):
        layers, hidden, intermediate, heads = APERTUS[model.removeprefix("Apertus-")]
        return replace(paper_reference(layers, hidden, intermediate, heads, 131072), kv_heads=8, tied_embeddings=False)
    return load_architecture(model, Path("."), None)


@cache
def machine(gpu: str) -> Machine:
    found = load_machine(MACHINES[gpu])
    if gpu not in VARIANTS:
        return found
    sustained, achieved = VARIANTS[gpu]
    source = "fitted to published training rows of this part"
    accelerator = replace(
        found.accelerator,
        gemm_sustained=Figure(sustained, "fitted", source),
        hbm_achieved=Figure(achieved, "assumed", source),
    )
    return replace(found, accelerator=accelerator)


def price_row(row: dict[str, str]) -> PriceTable:
    """Price one published row through the public entry point."""
    number = {name: int(row[name]) for name in ("gpus", "tp", "pp", "vpp", "cp", "ep", "zero", "micro_batch")}
    gpus, cp = number["gpus"], number["cp"]
    per_node = min(gpus, machine(row["gpu"]).gpus_per_node)
    mesh = MeshClass(gpus // per_node, per_node)
    dp = gpus // (number["tp"] * number["pp"] * cp)
    layout = ShardedLayout(
        dp=dp,
        shard_size=dp * cp,
        sequence_parallel=row["sequence_parallel"] == "1",
        recompute=row["recompute"],
        offload_activations=row["offload_activations"] == "1",
        **{name: number[name] for name in ("cp", "tp", "pp", "vpp", "ep", "zero", "micro_batch")},
    )
    work = StageWork(
        stage="pretraining",
        op=Op.TRAIN,
        role="model",
        architecture=architecture(row["model"]),
        framework=row["family"],
        engine_class="megatron" if row["family"] == "megatron-bridge" else "fsdp",
        prompts=int(row["batch_sequences"]),
        samples_per_prompt=1,
        minibatches=1,
        epochs=1,
        prompt_tokens=Lengths.fixed(1),
        response_tokens=Lengths.fixed(int(row["sequence_tokens"]) - 1),
        trained=True,
        lora_rank=int(row["lora_rank"]),
        engine_flags=frozenset(row["flags"].split()),
    )
    return price_training(work, mesh, columns_of([layout], mesh), machine(row["gpu"]))


def summary(errors: list[float]) -> tuple[float, float, float]:
    """Return median and 90th percentile of the absolute errors, and the median error."""
    array = np.asarray(errors)
    return float(np.median(np.abs(array))), float(np.quantile(np.abs(array), 0.9)), float(np.median(array))
