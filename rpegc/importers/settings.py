"""Settings of a launch by key, with the types that verl gives them; remembers which were asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from rpegc.errors import InputError
from rpegc.importers.shell import Overrides

_TRUE, _FALSE, _NONE = ("true", "1", "yes", "on"), ("false", "0", "no", "off"), ("null", "none", "~", "")
LARGEST_COUNT = 1_000_000_000


@dataclass(slots=True)
class Settings:
    """The overrides of one launch. Several keys of a question are names that verl gave one setting, the first wins.

    Reading raises InputError for a value of the wrong type, and for one that the text of the script does not decide.
    """

    overrides: Overrides
    used: set[str] = field(default_factory=set)

    def text(self, *keys: str) -> str | None:
        """Return the first setting of these keys that is given and not null, without quotes around it."""
        for key in keys:
            self.used.add(key)
            if key in self.overrides.unresolved:
                shown = self.overrides.unresolved[key]
                raise InputError(f"`{key}` is not decided by the script alone: {shown}", None, "give it as an override")
            value = self.overrides.values.get(key, "null").strip("'\"")
            if value.lower() not in _NONE:
                return value
        return None

    def count(self, *keys: str, default: int | None = None) -> int:
        """Return a whole number; raises InputError if there is none and no default."""
        value = self.text(*keys)
        if value is None:
            if default is None:
                raise InputError(f"`{keys[0]}` is missing")
            return default
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"`{keys[0]}` must be a whole number, got {value[:40]!r}") from None
        if number != number or abs(number) > LARGEST_COUNT or number != int(number):
            raise InputError(f"`{keys[0]}` must be a whole number of at most {LARGEST_COUNT}, got {value[:40]!r}")
        return int(number)

    def share(self, *keys: str, default: float) -> float:
        """Return a number above 0 and at most 1."""
        value = self.text(*keys)
        try:
            number = default if value is None else float(value)
        except ValueError:
            number = -1.0
        if not 0 < number <= 1:
            raise InputError(f"`{keys[0]}` must lie above 0 and at most at 1, got {str(value)[:40]!r}")
        return number

    def flag(self, *keys: str, default: bool) -> bool:
        """Return a switch."""
        value = self.text(*keys)
        if value is None:
            return default
        if value.lower() not in _TRUE + _FALSE:
            raise InputError(f"`{keys[0]}` must be True or False, got {value[:40]!r}")
        return value.lower() in _TRUE

    def last_part(self, *keys: str) -> str | None:
        """Return the last part of a path, even where its folder is known on the cluster only."""
        for key in keys:
            self.used.add(key)
            value = self.overrides.values.get(key) or self.overrides.unresolved.get(key)
            if value is not None and value.lower() not in _NONE:
                return value.strip("'\"/ }").rsplit("/", 1)[-1]
        return None

    def raw(self, key: str) -> str:
        """Return the text of a setting as far as it is known, "" without."""
        self.used.add(key)
        return self.overrides.values.get(key) or self.overrides.unresolved.get(key, "")

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys that nothing asked for, sorted."""
        return tuple(sorted({*self.overrides.values, *self.overrides.unresolved} - self.used))
