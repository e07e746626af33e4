"""What decides a setting of a target, and what a user writes instead of overriding it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fix:
    """A layout field that the planner chooses, the same for all of these stages of the pipeline."""

    stages: tuple[str, ...]
    field: str

    def __str__(self) -> str:
        return PLANNED


Owner = str | Fix
"""A layout field, a dotted key of the pipeline file, an option of the command line, or one of the words below."""

PLANNED = "the planner"
PLACED = "the planner, which places models on the GPUs of cluster.nodes"


def remedy(owner: Owner, key: str) -> str:
    """Return what to write in place of an override of this key."""
    if isinstance(owner, Fix):
        fields = ", ".join(f"{stage}: {{{owner.field}: ...}}" for stage in owner.stages)
        return f"write `fix: {{{fields}}}` instead, and leave out `{key}`"
    if owner == PLACED:
        return f"leave out `{key}`; `cluster.nodes` bounds what the plan uses"
    if owner.startswith("the "):
        return f"leave out `{key}`: launch files are written for one value of it"
    if owner.startswith("--"):
        return f"give `{owner}` to `rpegc compile` instead, and leave out `{key}`"
    return f"change {owner} instead, and leave out `{key}`"


def flat(wanted: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return a block of overrides as dotted keys with values, in the order of the file."""
    pairs: list[tuple[str, Any]] = []
    for key, value in wanted.items():
        path = f"{prefix}{key}"
        pairs += flat(value, f"{path}.") if isinstance(value, Mapping) and value else [(path, value)]
    return pairs


def decided_by(key: str, owners: Mapping[str, Owner]) -> tuple[str, Owner] | None:
    """Return the owned key that a key is, lies in or contains, and its owner; None if nothing decides it."""
    for owned, owner in owners.items():
        if key == owned or key.startswith(f"{owned}.") or (key and owned.startswith(f"{key}.")):
            return owned, owner
    return None
