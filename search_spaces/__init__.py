"""Search spaces: which meshes and layouts are tried. One YAML file a space, one comment a line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from rpegc.errors import InputError, SourcePosition, guess
from rpegc.target import ENGINE_FIELDS, SHARDED_FIELDS, WORDS

Scalar = str | int | float | bool

_FIELDS = {"train": SHARDED_FIELDS, "forward": SHARDED_FIELDS, "generate": ENGINE_FIELDS}
_DERIVED = ("dp", "replicas")  # follow from the mesh and the other degrees


@dataclass(frozen=True, slots=True)
class Space:
    """A named space: `values[(op, field)]` are the layout values tried; the mesh menu is described by two words."""

    name: str
    node_counts: str  # "every" | "powers"
    slices: bool
    values: dict[tuple[str, str], tuple[Scalar, ...]]


def space_names() -> tuple[str, ...]:
    """Return the names of the spaces that ship with rpegc."""
    folder = resources.files(__name__)
    return tuple(sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml")))


@cache
def load_space(name: str) -> Space:
    """Load a space by name; raises InputError, with a guess, if there is none of that name."""
    if name not in space_names():
        raise InputError(f"no search space is called `{name}`", hint=guess(name, space_names()))
    from ruamel.yaml import YAML

    text = (resources.files(__name__) / f"{name}.yaml").read_text(encoding="utf-8")
    return _space(name, YAML(typ="safe", pure=True).load(text))


def _space(name: str, document: dict[str, Any]) -> Space:
    values: dict[tuple[str, str], tuple[Scalar, ...]] = {}
    for op, fields in _FIELDS.items():
        listed = document[op]
        expected = set(fields) - set(_DERIVED)
        if set(listed) != expected:
            difference = sorted(expected.symmetric_difference(listed))
            raise InputError(f"space `{name}`, {op}: wrong fields: {difference}", SourcePosition(f"{name}.yaml", 1, 1))
        for field in sorted(listed):
            values[(op, field)] = tuple(listed[field])
            unknown = [v for v in listed[field] if field in WORDS and v not in WORDS[field]]
            if unknown:
                raise InputError(f"space `{name}`, {op}.{field}: {unknown} not in {WORDS[field]}")
    meshes = document["meshes"]
    return Space(name, meshes["node_counts"], bool(meshes["slices"]), values)
