"""What flows between stages: samples by row number, each with named columns of one array a sample.

A *row* is one sample of a step: prompt place * samples per prompt + sample. Parts of a step's rows are made by
different ranks, and are merged by whoever uses them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(slots=True)
class Rows:
    """Samples by row number; every column holds one one-dimensional array for each row."""

    columns: dict[str, dict[int, Array]] = field(default_factory=dict)

    @property
    def index(self) -> list[int]:
        """The row numbers, sorted."""
        return sorted(next(iter(self.columns.values()))) if self.columns else []

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def put(self, row: int, **values: Array | Sequence[float]) -> None:
        """Add values of one row."""
        for name, value in values.items():
            self.columns.setdefault(name, {})[row] = np.atleast_1d(np.asarray(value))

    def column(self, name: str) -> Mapping[int, Array]:
        """Return a column by row number; KeyError if there is none."""
        return self.columns[name]

    def scalar(self, name: str, row: int) -> float:
        """Return the only number of a column in a row."""
        return float(self.columns[name][row][0])

    def select(self, rows: Iterable[int]) -> Rows:
        """Return some of the rows."""
        chosen = list(rows)
        return Rows({name: {row: values[row] for row in chosen} for name, values in self.columns.items()})

    def merge(self, other: Rows) -> None:
        """Add the columns and rows of another table to this one."""
        for name, values in other.columns.items():
            self.columns.setdefault(name, {}).update(values)

    def to_bytes(self) -> bytes:
        """Return the table as bytes that hold arrays only (no pickled objects)."""
        arrays: dict[str, Array] = {}
        for name, values in self.columns.items():
            order = sorted(values)
            parts = [values[row] for row in order]
            arrays[f"{name}:rows"] = np.asarray(order, dtype=np.int64)
            arrays[f"{name}:lengths"] = np.asarray([len(part) for part in parts], dtype=np.int64)
            arrays[f"{name}:data"] = np.concatenate(parts) if parts else np.zeros(0)
        stream = io.BytesIO()
        np.savez(stream, allow_pickle=False, **arrays)
        return stream.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Rows:
        """Read what `to_bytes` wrote."""
        table = Rows()
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            names = dict.fromkeys(key.rpartition(":")[0] for key in arrays.files)
            for name in names:
                rows, lengths, flat = (arrays[f"{name}:{part}"] for part in ("rows", "lengths", "data"))
                parts = np.split(flat, np.cumsum(lengths)[:-1]) if len(rows) else []
                table.columns[name] = {int(row): part for row, part in zip(rows, parts, strict=True)}
        return table


def merged(parts: Iterable[Rows]) -> Rows:
    """Return all rows and columns of some parts as one table."""
    table = Rows()
    for part in parts:
        table.merge(part)
    return table
