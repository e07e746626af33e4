"""Tables of measured rows: CSV files by name, from the package or from a folder with the same names and columns."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from rpegc.errors import InputError

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that is not predicted, and why; `kind` is what it would have been, where a file holds several kinds."""

    row_id: str
    reason: str
    kind: str = ""


class SkipRow(Exception):
    """Raised while a row is read: it cannot be predicted, for this reason."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Measured tables: `path` is a folder of the user, None the rows that come with the package."""

    path: Path | None = None

    def names(self, pattern: str) -> tuple[str, ...]:
        """Return the file names that match a regular expression, sorted."""
        found = resources.files("rpegc.validate").joinpath("data") if self.path is None else self.path
        try:
            names = [file.name for file in found.iterdir()]
        except OSError as error:
            raise InputError(f"cannot read the folder `{self.path}`: {error.strerror}") from None
        return tuple(sorted(name for name in names if re.fullmatch(pattern, name)))

    def rows(self, name: str, columns: tuple[str, ...]) -> list[Row]:
        """Return the rows of one file, each with a `row_id` and a `source`; `columns` must be there."""
        if self.path is None:
            rows = _packaged(name)
        else:
            try:
                rows = _read((self.path / name).read_text(encoding="utf-8-sig"), name)
            except (OSError, UnicodeDecodeError, csv.Error) as error:
                raise InputError(f"cannot read `{self.path / name}`: {error}") from None
        if rows:
            missing = [column for column in columns if column not in rows[0]]
            if missing:
                raise InputError(f"{name} lacks the columns {', '.join(missing)}")
        return rows


@cache
def _packaged(name: str) -> list[Row]:
    text = resources.files("rpegc.validate").joinpath("data", name).read_text(encoding="utf-8")
    return _read(text, name)


def _read(text: str, name: str) -> list[Row]:
    """Parse a table; rows without an id are numbered from 1 after the file's name."""
    stem = name.removesuffix(".csv")
    rows = []
    for number, raw in enumerate(csv.DictReader(text.splitlines()), start=1):
        row = {str(key): (value or "").strip() for key, value in raw.items() if isinstance(value, str | None) and key}
        row["row_id"] = row.get("row_id") or f"{stem}-{number:05d}"
        row["source"] = row.get("source") or name
        rows.append(row)
    return rows


def number(row: Row, column: str, default: float | None = None) -> float:
    """Return a positive number of a row, `default` for an empty cell; skips the row without either."""
    text = row.get(column, "")
    if not text:
        if default is None:
            raise SkipRow(f"`{column}` is not stated")
        return default
    try:
        value = float(text)
    except ValueError:
        raise SkipRow(f"`{column}` is no number: {text[:40]}") from None
    if not 0 < value < 1e18:
        raise SkipRow(f"`{column}` is not a positive number: {text[:40]}")
    return value


def whole(row: Row, column: str, default: int | None = None) -> int:
    """Return a positive whole number of a row, see `number`."""
    value = number(row, column, default)
    if value != int(value):
        raise SkipRow(f"`{column}` is not a whole number: {value:g}")
    return int(value)
