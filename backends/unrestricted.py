"""No target at all: every structure, every placement, every layout that PyTorch's own parts can run.

The report sets a target's plan beside the best one of this space, which says what the target's limits cost. It is the
space of the native engine; prices are those of framework `native`.
"""

from __future__ import annotations

from typing import Any

from rpegc.target import Capabilities, PlacementPattern

FAR = 1_000
"""A weight distance that no user allows."""

PLACEMENTS = (
    PlacementPattern(
        name="anywhere",
        mode="",
        parents=(0, 0, 0, 1, 1, 2, 2),
        homes={},
        weight_distance=(1, FAR),
        source="a cluster, two parts of it, and two parts of each: a laminar family",
    ),
)

_SHARDED: dict[str, tuple[Any, ...]] = {
    "ulysses": (1,),
    "vpp": (1,),
    "etp": (1,),
    "micro_batch": (0,),
    "zero": (3,),
    "token_budget": (4096, 8192, 16384, 32768, 65536),
}

FIELD_VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    **{("train", field): values for field, values in _SHARDED.items()},
    **{("forward", field): values for field, values in _SHARDED.items()},
    ("forward", "recompute"): ("none",),
    ("forward", "offload_optimizer"): (False,),
    ("forward", "offload_activations"): (False,),
    ("generate", "engine_dp"): (1,),
    ("generate", "precision"): ("bf16", "fp8"),
}
"""FSDP2, context, tensor and pipeline parallelism; one form of sequence parallelism; budgets of powers of two."""


def capabilities(structures: frozenset[str]) -> Capabilities:
    """Return the capabilities of no target in particular; `structures` are the names of all passes."""
    return Capabilities(
        name="native",
        version="any",
        engine_class="fsdp",
        placements=PLACEMENTS,
        field_values=FIELD_VALUES,
        rules={},
        ties=(),
        structures=structures,
    )
