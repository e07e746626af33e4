"""A GRPO update on eight Alps nodes and layouts for it: shared by the tests of time, device and host memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rpegc.architecture import Architecture
from rpegc.cost.forward import price_forward
from rpegc.cost.table import PriceTable
from rpegc.cost.training import price_training
from rpegc.cost.work import StageWork
from rpegc.frontend.hf_config import load_architecture
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import FloatArray, MeshClass, ShardedLayout, columns_of

MACHINE = load_machine("gh200-alps")
DENSE = load_architecture("Qwen/Qwen3-8B", Path("."), None)
MOE = load_architecture("Qwen/Qwen3-30B-A3B", Path("."), None)
MESH = MeshClass(8, 4)
FULLY_SHARDED = ShardedLayout(dp=32, zero=3, shard_size=32, token_budget=16384, recompute="full")


def work_of(architecture: Architecture = DENSE, **changes: object) -> StageWork:
    work = StageWork(
        stage="actor_update",
        op=Op.TRAIN,
        role="actor",
        architecture=architecture,
        framework="verl",
        engine_class="fsdp",
        prompts=512,
        samples_per_prompt=8,
        minibatches=4,
        epochs=1,
        prompt_tokens=Lengths.from_mean(300, 1024),
        response_tokens=Lengths.from_mean(3000, 8192),
        trained=True,
    )
    return replace(work, **changes)  # type: ignore[arg-type]


def train(*layouts: ShardedLayout, work: StageWork | None = None, mesh: MeshClass = MESH) -> PriceTable:
    return price_training(work or work_of(), mesh, columns_of(list(layouts), mesh), MACHINE)


def forward(*layouts: ShardedLayout, work: StageWork | None = None, mesh: MeshClass = MESH) -> PriceTable:
    return price_forward(replace(work or work_of(), op=Op.FORWARD), mesh, columns_of(list(layouts), mesh), MACHINE)


def seconds(table: PriceTable, name: str) -> FloatArray:
    return next(term.seconds for term in table.times if term.name == name)


def wire_seconds(table: PriceTable, name: str) -> FloatArray:
    """Exposed and hidden seconds together."""
    return next(term.seconds + term.hidden_seconds for term in table.times if term.name == name)


LAYOUTS = [
    ShardedLayout(
        dp=32 // (tp * pp * cp * ulysses),
        cp=cp,
        ulysses=ulysses,
        tp=tp,
        pp=pp,
        vpp=2 if pp > 1 else 1,
        ep=ep,
        zero=zero,
        shard_size=min(shard, 32 // (tp * pp)),
        sequence_parallel=tp > 1,
        token_budget=0 if pp > 1 else 16384,
        micro_batch=2 if pp > 1 else 0,
        recompute=recompute,
        offload_parameters=offload,
        offload_optimizer=offload,
        offload_activations=offload,
    )
    for tp, pp, cp, ulysses, ep in ((1, 1, 1, 1, 1), (1, 1, 1, 4, 1), (2, 1, 2, 1, 8), (4, 2, 1, 1, 4), (2, 4, 2, 1, 1))
    for zero, shard in ((0, 1), (1, 1), (2, 4), (3, 8), (3, 32))
    for recompute in ("none", "selective", "full")
    for offload in (False, True)
]
