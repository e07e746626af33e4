"""The ladder of mesh trees: simple trees first, whose plans and cutoffs make the search on richer ones short."""

from __future__ import annotations

from collections.abc import Mapping

from rpegc.search.solver.problem import Template


def ladder_of(tree: tuple[int, ...], homes: Mapping[str, tuple[int, ...]]) -> tuple[Template, ...]:
    """Return the tree's growing parts on which every stage has a home, the whole tree last.

    A rung is the first nodes of the tree; each rung adds the children of one more node, so that no rung cuts a node
    into a single part.
    """
    sizes = [size for size in range(1, len(tree)) if tree[size] != tree[size - 1] or size == 1]
    rungs = []
    for size in sizes:
        parts = {name: tuple(node for node in nodes if node < size) for name, nodes in homes.items()}
        if all(parts.values()):
            rungs.append(Template(tree[:size], parts))
    return (*rungs, Template(tree, dict(homes)))
