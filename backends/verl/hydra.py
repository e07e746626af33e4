"""Overrides in Hydra's grammar: one `key=value` a line, each value quoted so that it arrives as it was written."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from backends.owners import Owner
from rpegc.emit import CONTROL_CHARACTERS, TargetRefusal

Scalar = str | int | float | bool | None
Value = Scalar | tuple[Scalar, ...]

BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.-]*")
RESERVED_WORDS = frozenset({"null", "true", "false", "nan", "inf"})


@dataclass(frozen=True, slots=True)
class Raw:
    """Text of our own that is already in Hydra's grammar, or holds an interpolation of ours."""

    text: str


@dataclass(frozen=True, slots=True)
class Override:
    """One setting of the target, and the pipeline key (or the part of the plan) that decides it.

    `add` marks a key that verl's dataclasses have and its YAML files lack: Hydra wants `+` before it. `free` marks a
    default of ours that a user's own override replaces.
    """

    key: str
    value: Value | Raw
    owner: Owner
    add: bool = False
    free: bool = False

    @property
    def line(self) -> str:
        """The override as Hydra reads it."""
        return f"{'+' if self.add else ''}{self.key}={hydra_value(self.value, str(self.owner))}"


def hydra_value(value: Value | Raw, what: str) -> str:
    """Print a value in Hydra's grammar; TargetRefusal for a text that Hydra or OmegaConf would change."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, tuple):
        return "[" + ",".join(hydra_value(item, what) for item in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        if not math.isfinite(value):
            raise refusal(what, f"{value} is not a finite number")
        return repr(value)
    return hydra_text(value, what)


def hydra_text(text: str, what: str) -> str:
    """Quote a text for Hydra: bare if it is plain, else in single quotes.

    Inside quotes a backslash counts only before a quote, so only those are doubled (Hydra 1.3 override grammar).
    """
    checked = plain_text(text, what)
    if BARE.fullmatch(checked) and checked.lower() not in RESERVED_WORDS:
        return checked
    return quoted(checked)


def quoted(text: str) -> str:
    """Put a checked text into single quotes of Hydra's grammar."""
    escaped = re.sub(r"(\\*)'", lambda match: match.group(1) * 2 + r"\'", text)
    escaped = re.sub(r"(\\+)$", lambda match: match.group(1) * 2, escaped)
    return f"'{escaped}'"


def plain_text(text: str, what: str) -> str:
    """Return the text; TargetRefusal if it would end a line, or OmegaConf would read something else in it."""
    found = CONTROL_CHARACTERS.search(text)
    if found:
        raise refusal(what, f"{text!r} holds the control character {found.group()!r}; launch files cannot carry it")
    if "${" in text:
        raise refusal(what, f"{text!r} holds `${{`, which Hydra would expand", "rename it")
    if text == "???":
        raise refusal(what, "`???` means a missing value to Hydra", "rename it")
    return text


USER = "target_overrides."
"""Before the key of an override that the user wrote, where it names what decides the key."""


def refusal(what: str, problem: str, hint: str | None = None) -> TargetRefusal:
    """Return the refusal of a value by what decides it: a dotted pipeline key, or `target_overrides.` and a key."""
    path = (USER[:-1], what.removeprefix(USER)) if what.startswith(USER) else tuple(what.split("."))
    return TargetRefusal(f"{what}: {problem}", path, hint)
