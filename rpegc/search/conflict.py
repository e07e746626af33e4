"""The smallest set of a user's constraints that cannot hold together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeVar

Constraint = TypeVar("Constraint")

MOST_CHECKS = 24
"""Sets that are tried by size before the set found by deletion is taken as it is."""


def smallest_conflict(
    constraints: Sequence[Constraint], holds: Callable[[tuple[Constraint, ...]], bool]
) -> tuple[Constraint, ...]:
    """Return a smallest subset that does not hold; () if nothing holds even without constraints.

    `holds` is monotone: what holds with more constraints holds with fewer. A deletion filter gives a subset of which
    every member matters; smaller ones are then tried by size, as long as they are few.
    """
    if not holds(()):
        return ()
    kept = tuple(constraints)
    for one in constraints:
        without = tuple(other for other in kept if other is not one)
        if not holds(without):
            kept = without
    checks = 0
    for size in range(1, len(kept)):
        for subset in combinations(constraints, size):
            checks += 1
            if checks > MOST_CHECKS:
                return kept
            if not holds(subset):
                return subset
    return kept
