"""A target that can place every stage, on one mesh or on two halves: for pipelines that no emitted target expresses.

It prices and searches as any target; it has no launch files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rpegc.emit import Facts, Files
from rpegc.ir.graph import Graph
from rpegc.plan import Plan
from rpegc.target import Capabilities, PlacementPattern, Tie

ENGINE_FIELDS = ("ulysses", "shard_size", "zero", "offload_parameters", "offload_optimizer")
SHARDED = {**dict.fromkeys(("cp", "tp", "pp", "vpp", "ep", "etp"), (1,)), "zero": (3,), "micro_batch": (0,)}

CAPABILITIES = Capabilities(
    name="native",  # whose prices of weight syncs it takes
    version="1",
    engine_class="fsdp",
    placements=(
        PlacementPattern("together", "sync", (0, 0), {"*": (1,)}, barrier=True),
        PlacementPattern("apart", "sync", (0, 0, 0), {"op:generate": (2,), "*": (1,)}),
    ),
    field_values={
        **{(op, field): values for op in ("train", "forward") for field, values in SHARDED.items()},
        ("forward", "recompute"): ("none",),
        ("forward", "offload_activations"): (False,),
        **{("generate", field): (1,) for field in ("engine_dp", "pp", "ep")},
        ("generate", "precision"): ("bf16",),
    },
    rules={},
    ties=(),
    structures=frozenset({"canonicalize", "insert-transitions", "place", "parallelize"}),
)


@dataclass(frozen=True)
class Anywhere:
    """See `rpegc.emit.Backend`."""

    name: str = "native"
    version: str = "1"

    def capabilities(self, version: str = "", lora_rank: int = 0) -> Capabilities:
        return CAPABILITIES

    def engines(self, pipeline: Mapping[str, Any]) -> tuple[Capabilities, ...]:
        return (CAPABILITIES,)

    def ties_for(self, graph: Graph) -> tuple[Tie, ...]:
        ties = []
        for train in graph.stages:
            passes = [s.name for s in graph.stages if s.op == "forward" and s.model == train.model]
            if train.op == "train" and passes:
                ties.append(Tie((train.name, *passes), ENGINE_FIELDS, "one engine per model"))
        return tuple(ties)

    def check_pipeline(self, pipeline: Mapping[str, Any]) -> None:
        pass

    def check(self, plan: Plan, facts: Facts | None = None) -> None:
        pass

    def emit(self, plan: Plan, site: str = "", facts: Facts | None = None) -> Files:
        return {}
