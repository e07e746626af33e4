"""The user's own overrides of verl: passed through where the plan has no say, refused where it has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from backends.owners import Owner, decided_by, flat, remedy
from backends.verl.hydra import USER, Override, Scalar, Value, refusal
from backends.verl.keys import problem_of
from backends.verl.owners import reserved
from backends.verl.run import Run
from backends.verl.settings import settings_of

PREFIXES = "+~"
"""What Hydra wants before a key to add, force or delete it: none of them changes whose key it is."""

KEY = re.compile(r"\+{0,2}[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")


def overrides_of(run: Run) -> tuple[Override, ...]:
    """Return all overrides of a run, the user's last and in the place of ours where the setting is free.

    Raises TargetRefusal for a key that is owned, or that Hydra refuses.
    """
    decided = settings_of(run)
    owners = reserved(run.parts, run.request.get("reward") is not None, run.engine)
    owners |= {setting.key: setting.owner for setting in decided if not setting.free}
    wanted = flat(run.request.get("target_overrides", {}))
    seen: dict[str, str] = {}
    for key, _ in wanted:
        other = seen.setdefault(key.lstrip(PREFIXES), key)
        if other != key:
            raise refusal(f"{USER}{key}", f"`{other}` already sets this key", "keep one of the two")
    users = tuple(_checked(key, value, owners, run.engine) for key, value in wanted)
    return (*(setting for setting in decided if setting.key not in seen), *users)


def _checked(key: str, value: Any, owners: Mapping[str, Owner], engine: str) -> Override:
    what, bare = f"{USER}{key}", key.lstrip(PREFIXES)
    found = decided_by(bare, owners)
    if found:
        raise refusal(what, f"{found[0]} is decided by {found[1]}", remedy(found[1], key))
    if not KEY.fullmatch(key):
        raise refusal(what, "a key is dotted words, with `+` before one that verl's YAML files lack")
    plain = _value(value, what)
    problem = problem_of(key, plain, engine)
    if problem:
        raise refusal(what, *problem)
    return Override(key, plain, what)


def _value(value: Any, what: str) -> Value:
    if isinstance(value, list | tuple):
        return tuple(_scalar(item, what) for item in value)
    return _scalar(value, what)


def _scalar(value: Any, what: str) -> Scalar:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise refusal(what, f"{value!r} is not a text, number, truth value, null or list of these")
