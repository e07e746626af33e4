"""The smallest change of a request that makes a plan fit: more nodes of the same machine, else another machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

LARGEST_CLUSTER_TRIED = 1024
"""Nodes up to which a cluster that fits is looked for."""

LARGEST_POOL_TRIED = 128
"""Nodes up to which a pool that fits is looked for."""

Fits = Callable[[str, int], bool]
"""Whether some plan fits so many nodes of a machine."""


def smallest_change(fits: Fits, machine: str, nodes: int, others: Iterable[str]) -> str:
    """Return the change as the lines of the pipeline to edit; a sentence that says so if none was found."""
    enough = smallest_cluster(fits, machine, nodes)
    if enough is not None:
        return f"cluster.nodes: {enough}"
    best, fewest = "", LARGEST_CLUSTER_TRIED + 1
    for name in others:  # each machine only up to what would beat the best one so far
        count = smallest_cluster(fits, name, 0, fewest - 1)
        if count is not None:
            best, fewest = name, count
    prefix = f"no number of {machine} nodes up to {LARGEST_CLUSTER_TRIED} fits; "
    if best:
        return f"{prefix}cluster.hardware: {best}, cluster.nodes: {fewest}"
    return prefix + "a smaller model or shorter responses"


def smallest_pool_change(fits: Callable[[Mapping[str, int]], bool], nodes: Mapping[str, int]) -> str:
    """Return the pool that has to grow, and to how many nodes; a sentence that says so if growing one is not enough.

    `fits` says whether some plan fits so many nodes of each pool.
    """
    for name in nodes:

        def enough(pool: str, count: int) -> bool:
            return fits({**nodes, pool: count})

        count = smallest_cluster(enough, name, nodes[name], LARGEST_POOL_TRIED)
        if count is not None:
            return f"cluster.pools.{name}.nodes: {count}"
    tried = f"no number of nodes up to {LARGEST_POOL_TRIED} of one of the pools fits"
    return f"{tried}; other machines, a smaller model or shorter responses"


def smallest_cluster(fits: Fits, machine: str, too_few: int, largest: int = LARGEST_CLUSTER_TRIED) -> int | None:
    """Return the smallest count above `too_few`, up to `largest`, on which a plan fits: doubling, then bisection."""
    low, high = too_few, max(1, 2 * too_few)
    if high > largest:
        return None
    while not fits(machine, high):
        if high == largest:
            return None
        low, high = high, min(2 * high, largest)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(machine, middle) else (middle, high)
    return high
