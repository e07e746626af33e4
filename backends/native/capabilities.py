"""What the native engine can execute: where stages may sit, which values fields take, what shares a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.native.rules import RULES
from rpegc.errors import InputError
from rpegc.ir.graph import Op
from rpegc.target import Capabilities, PlacementPattern, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph

VERSION = "1"
"""Of the engine's contract with plans; a plan of another version is refused."""

LARGEST_DISTANCE = 65
"""Steps from an update to the generation that uses it: `allow.max_staleness` of 64, and one."""

SOURCE = "rpegc/runtime/setup.py"

PLACEMENTS: tuple[PlacementPattern, ...] = (
    PlacementPattern(name="colocated", mode="", parents=(0, 0), homes={"*": (1,)}, source=SOURCE),
    PlacementPattern(
        name="apart",
        mode="",
        parents=(0, 0, 0),
        homes={"op:generate": (2,), "*": (1,)},
        weight_distance=(1, LARGEST_DISTANCE),
        source=SOURCE,
    ),
    PlacementPattern(
        name="frozen-models-beside-generation",
        mode="",
        parents=(0, 0, 0),
        homes={"op:generate": (2,), "model:reference": (2,), "model:reward": (2,), "*": (1,)},
        weight_distance=(1, LARGEST_DISTANCE),
        source=SOURCE,
    ),
    PlacementPattern(
        name="critic-apart",
        mode="",
        parents=(0, 0, 0, 0),
        homes={"op:generate": (2,), "model:critic": (3,), "*": (1,)},
        weight_distance=(1, LARGEST_DISTANCE),
        source=SOURCE,
    ),
)
"""Passes over a trained model sit where it is trained: they run the same model (see `ties_for`)."""

SHARDED_VALUES: dict[str, tuple[Any, ...]] = {"cp": (1,), "ep": (1,), "etp": (1,)}

FIELD_VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    **{("train", field): values for field, values in SHARDED_VALUES.items()},
    **{("forward", field): values for field, values in SHARDED_VALUES.items()},
    ("train", "vpp"): (1, 2, 4),
    ("forward", "recompute"): ("none",),
    ("forward", "offload_activations"): (False,),
    ("generate", "engine_dp"): (1,),
    ("generate", "pp"): (1,),
    ("generate", "ep"): (1,),
    ("generate", "precision"): ("bf16",),
}
"""No context parallelism: ring attention has no CPU kernel in torch 2.13 to be proven on; Ulysses splits sequences.
No expert parallelism: experts are whole on every rank, sharded by FSDP."""

STRUCTURES = frozenset(
    {
        "canonicalize",
        "drop-old-logprobs",
        "reuse-rollout-logprobs",
        "bounded-asynchrony",
        "insert-transitions",
        "place",
        "parallelize",
    }
)
"""The passes whose graphs the engine executes. Adapters, hence `share-base-reference`, it does not have.

Two are absent though the runtime does something like them. `partial-rollout` cuts all samples at an equal share of the
longest length; `runtime/generating.py` carries over half of a step's groups, whichever end last. `stream-rollout` hands
over single samples, and has a variant that trains in completion order; `runtime/flow.py` hands over whole groups, no
more waves than a replica has groups, and several updates a step take the batch in its own order."""

MODEL_FIELDS = (
    "ulysses",
    "tp",
    "pp",
    "vpp",
    "sequence_parallel",
    "shard_size",
    "zero",
    "offload_parameters",
    "offload_optimizer",
)


def capabilities(version: str = VERSION) -> Capabilities:
    """Return what the engine can execute; InputError for a version other than this one."""
    if version != VERSION:
        raise InputError(f"target version: the native engine executes plans of version {VERSION}, not {version!r}")
    return Capabilities(
        name="native",
        version=version,
        engine_class="fsdp",
        placements=PLACEMENTS,
        field_values=FIELD_VALUES,
        rules=RULES,
        ties=(),
        structures=STRUCTURES,
    )


def ties_for(graph: Graph) -> tuple[Tie, ...]:
    """Return the stages of a graph that run one model in memory: a trained role's updates and passes."""
    ties = []
    for train in graph.of_op(Op.TRAIN):
        passes = tuple(s.name for s in graph.of_op(Op.FORWARD) if s.model == train.model)
        if passes:
            ties.append(Tie((train.name, *passes), MODEL_FIELDS, SOURCE))
    return tuple(ties)
