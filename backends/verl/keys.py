"""The keys of verl's configuration: what an override may name, and what was probably meant where it names another."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources

from backends.verl.capabilities import FSDP, VERSION
from backends.verl.hydra import Value

VALUE, NULL, FREE, SECTION = "value", "null", "free", "section"
"""A key that has a value; one that has none, so that Hydra takes `+key`; a free dict; a part with keys of its own."""


@cache
def known_keys(engine: str = FSDP) -> dict[str, str]:
    """Return what each key of the configuration composed for a training engine is, sections included."""
    suffix = "" if engine == FSDP else f"-{engine}"
    text = (resources.files("backends.verl") / f"keys-{VERSION}{suffix}.txt").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        key, _, mark = line.partition(" ")
        found[key] = {"": VALUE, "null": NULL, "{}": FREE}[mark]
        while "." in key:
            key = key.rpartition(".")[0]
            found.setdefault(key, SECTION)
    return found


def problem_of(written: str, value: Value, engine: str = FSDP) -> tuple[str, str] | None:
    """Return why Hydra, or sense, refuses an override, and a hint; None if it may stand.

    `written` is the key with `+` or `++` before it, if any. Hydra 1.3 refuses a key that is not there, and `+` before
    one that is there with a value, unless the new value is a list.
    """
    key = written.lstrip("+")
    kind = known_keys(engine).get(key)
    if kind in (SECTION, FREE):
        below = "+KEY" if kind == FREE else "KEY"
        sign = below.removesuffix("KEY")
        return f"{key} is a part of verl's configuration with keys of its own", f"write `{sign}{key}.KEY: ...`"
    if written.startswith("++"):
        return None
    if written.startswith("+"):
        if kind == VALUE and not isinstance(value, tuple):
            return f"verl's configuration has {key} already, and Hydra refuses `+` before it", f"drop the `+`: `{key}`"
        return None
    if kind is None:
        return f"verl {VERSION}'s configuration has no such key", probable(key, engine)
    return None


def probable(key: str, engine: str = FSDP) -> str:
    """Return what was probably meant: a key beside it, the same name elsewhere, or a key that verl's files lack."""
    known = known_keys(engine)
    section, _, name = key.rpartition(".")
    lacking = f"`+{key}` adds it if verl reads it although its files lack it"
    beside = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    elsewhere = [other for other in known if other.endswith(f".{key}")]
    close = [
        *(beside[word] for word in difflib.get_close_matches(name, beside, n=1, cutoff=0.6)),
        *elsewhere[:1],
        *difflib.get_close_matches(key, known, n=1, cutoff=0.8),
    ]
    return f"did you mean `{close[0]}`? {lacking}" if close else lacking
