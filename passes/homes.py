"""Which stages a placement pattern means: by name, by model, by op, or all."""

from __future__ import annotations

from rpegc.ir.graph import Stage
from rpegc.target import PlacementPattern


def homes_of(pattern: PlacementPattern, stage: Stage) -> tuple[int, ...]:
    """Return the tree nodes that a stage may sit on, sorted; none if the pattern has no place for it.

    Keys of `homes`, the first that matches wins: the stage's name (bare or as "stage:<name>"), "model:<role>",
    "op:<op>", "*". A stage that no key matches may sit on any node.
    """
    for key in (stage.name, f"stage:{stage.name}", f"model:{stage.model}", f"op:{stage.op.value}", "*"):
        if key in pattern.homes:
            return tuple(sorted(set(pattern.homes[key])))
    return tuple(range(len(pattern.parents)))
