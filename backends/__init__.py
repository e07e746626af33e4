"""The targets that rpegc can emit for, by name."""

from __future__ import annotations

from rpegc.emit import Backend
from rpegc.errors import InputError, guess


def backend_names() -> tuple[str, ...]:
    """Return the names of the targets that have a backend, sorted."""
    return ("native", "verl")


def backend(name: str) -> Backend:
    """Return the backend of a target; InputError naming the known ones if there is none."""
    if name == "verl":
        from backends.verl import VerlBackend  # imported late: `rpegc --help` must not pay for templates

        return VerlBackend()
    if name == "native":
        from backends.native import NativeBackend

        return NativeBackend()
    raise InputError(f"target: there is no backend {name!r}", hint=guess(name, backend_names()))
