"""The targets that rpegc can emit for, by name."""

from __future__ import annotations

from rpegc.emit import Backend, TargetRefusal
from rpegc.errors import InputError, guess

FLAVOURS: dict[str, tuple[str, ...]] = {"deepspeed": ("trl", "openrlhf"), "native": (), "verl": ()}
"""The trainers that a target has, the first by default; none where there is only one."""


def backend_names() -> tuple[str, ...]:
    """Return the names of the targets that have a backend, sorted."""
    return tuple(sorted(FLAVOURS))


def backend(name: str, flavour: str = "") -> Backend:
    """Return the backend of a target, in a flavour of it; "" is the target's default.

    Raises InputError naming the known ones if there is none, TargetRefusal for a flavour that the target lacks.
    """
    if name not in FLAVOURS:
        raise InputError(f"target: there is no backend {name!r}", hint=guess(name, backend_names()))
    if flavour and flavour not in FLAVOURS[name]:
        hint = guess(flavour, FLAVOURS[name]) or "leave `target_flavour` out"
        raise TargetRefusal(f"target_flavour: {name} has no flavour {flavour!r}", ("target_flavour",), hint)
    if name == "verl":
        from backends.verl import VerlBackend  # imported late: `rpegc --help` must not pay for templates

        return VerlBackend()
    if name == "native":
        from backends.native import NativeBackend

        return NativeBackend()
    if flavour == "openrlhf":
        from backends.openrlhf import OpenRlhfBackend

        return OpenRlhfBackend()
    from backends.deepspeed import TrlBackend

    return TrlBackend()
