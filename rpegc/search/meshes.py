"""The menu of mesh classes: which shapes of GPU rectangles the search may use on a cluster."""

from __future__ import annotations

from collections.abc import Iterable

from rpegc.hardware import Pool
from rpegc.target import MeshClass


def mesh_menu(nodes: int, gpus_per_node: int, node_counts: str, slices: bool) -> tuple[MeshClass, ...]:
    """Return the mesh classes of a cluster, smallest first.

    `node_counts` "every" lists each count up to 16 nodes; above, and for "powers", the menu of `_node_counts`.
    `slices` adds the same few GPUs of every node, and parts of one node; a single node always has its parts.
    """
    counts = range(1, nodes + 1) if node_counts == "every" and nodes <= 16 else _node_counts(nodes)
    classes = {MeshClass(count, gpus_per_node) for count in counts}
    parts = [width for width in range(1, gpus_per_node) if gpus_per_node <= 8 or width & (width - 1) == 0]
    if slices or nodes == 1:
        classes |= {MeshClass(nodes, width) for width in parts}
        classes |= {MeshClass(1, width) for width in parts if width & (width - 1) == 0}
    return tuple(sorted(classes, key=lambda shape: (shape.gpus, shape.nodes)))


def pool_menu(pools: Iterable[Pool], node_counts: str) -> tuple[MeshClass, ...]:
    """Return the mesh classes of a cluster of unlike machines: whole nodes of each pool, smallest first."""
    menu: list[MeshClass] = []
    for pool in pools:
        width = pool.machine.gpus_per_node
        classes = mesh_menu(pool.nodes, width, node_counts, slices=False)
        menu += [MeshClass(shape.nodes, width, pool.name) for shape in classes if shape.gpus_per_node == width]
    return tuple(menu)


def _node_counts(nodes: int) -> list[int]:
    """Powers of two, three times those, thirds, five eighths, and what each leaves of the cluster."""
    chosen = {nodes}
    power = 1
    while power <= nodes:
        chosen |= {power, min(3 * power, nodes)}
        power *= 2
    chosen |= {max(1, nodes // 3), max(1, 2 * nodes // 3), max(1, 5 * nodes // 8)}
    chosen |= {nodes - count for count in chosen if count < nodes}
    return sorted(chosen)
