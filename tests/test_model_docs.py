"""docs/model.md explains every term that a bill or a memory table can hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rpegc.cost.functions import price_function
from rpegc.cost.host_memory import node_terms
from rpegc.cost.price import price
from rpegc.cost.work import StageWork
from rpegc.frontend.hf_config import load_architecture
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import EngineLayout, Layout, MeshClass, ShardedLayout, columns_of

EXPLAINED = set(re.findall(r"`([a-z_*]+)`", (Path(__file__).parent.parent / "docs" / "model.md").read_text("utf-8")))
MESH = MeshClass(4, 4)
CASES: dict[str, tuple[Op, str, Layout]] = {
    "dense training": (Op.TRAIN, "fsdp", ShardedLayout(dp=8, ulysses=2, zero=3, shard_size=16, token_budget=8192)),
    "MoE training": (Op.TRAIN, "megatron", ShardedLayout(dp=2, cp=2, tp=2, pp=2, ep=2, zero=1, micro_batch=1)),
    "forward": (Op.FORWARD, "fsdp", ShardedLayout(dp=16, zero=2, shard_size=16, token_budget=16384)),
    "generation": (Op.GENERATE, "fsdp", EngineLayout(replicas=4, tp=4)),
}


def explained(name: str) -> bool:
    base = re.sub("_(kept|onloaded)$", "", name)
    return base in EXPLAINED or any(word.endswith("*") and name.startswith(word[:-1]) for word in EXPLAINED)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"])
@pytest.mark.parametrize("case", list(CASES))
def test_every_term_is_explained(case: str, model: str) -> None:
    op, engine, layout = CASES[case]
    work = StageWork(
        case, op, "actor", load_architecture(model, Path(), None), "verl", engine, 64, 8, 2, 1,
        Lengths.fixed(256), Lengths.from_mean(1000.0, 4096), trained=op is Op.TRAIN,
        lora_rank=8 if "dense" in case else 0,
    )  # fmt: skip
    table = price(work, MESH, columns_of([layout], MESH), load_machine("gh200-alps"))
    missing = [term.name for term in (*table.times, *table.memory) if not explained(term.name)]
    assert missing == []


def test_terms_of_functions_and_nodes_are_explained() -> None:
    work = StageWork(
        "verify", Op.FUNCTION, "", None, "verl", "fsdp", 64, 8, 1, 1,
        Lengths.fixed(256), Lengths.fixed(512), cpu_seconds_per_sample=0.1,
    )  # fmt: skip
    names = [term.name for term in price_function(work, 2, load_machine("gh200-alps"))]
    names += [term.name for term in node_terms(1e9)]
    assert [name for name in names if not explained(name)] == []
