"""The ladder of mesh trees: simple trees first, whose plans and cutoffs make the search on richer ones short."""

from __future__ import annotations

from collections.abc import Mapping

from rpegc.search.solver.problem import Template


def ladder_of(tree: tuple[int, ...], homes: Mapping[str, tuple[int, ...]]) -> tuple[Template, ...]:
    """Return the cluster and its parts, if every stage has a home there; then the whole tree, which contains it.

    Two rungs are enough: with PPO on 256 GPUs a first rung of one mesh costs as much again as it saves, because a plan
    with all stages on one mesh is too long to cut anything off.
    """
    first = next((size for size in range(1, len(tree)) if tree[size] != 0), len(tree))
    parts = {name: tuple(node for node in nodes if node < first) for name, nodes in homes.items()}
    whole = Template(tree, dict(homes))
    return (Template(tree[:first], parts), whole) if first < len(tree) and all(parts.values()) else (whole,)
