"""Rows of price tables: a part of them, and those that several tables have in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rpegc.cost.table import PriceTable
from rpegc.search.enumerate import select
from rpegc.target import SHARDED_FIELDS, IntArray


def aligned(tables: tuple[PriceTable, ...]) -> tuple[PriceTable, ...]:
    """Return the tables on the layouts that all of them have, in one order and with one numbering of signatures.

    Empty if there is no common layout, or if equal layouts look different to other stages.
    """
    keys = _layout_keys(tables)
    common = keys[0]
    for other in keys[1:]:
        common = np.intersect1d(common, other)
    if not len(common):
        return ()
    rows = [np.argsort(key)[np.searchsorted(np.sort(key), common)] for key in keys]
    numbers: dict[tuple[tuple[str, int], ...], int] = {}
    made = []
    for table, kept in zip(tables, rows, strict=True):
        present, inverse = np.unique(table.signature[kept], return_inverse=True)
        translated = np.asarray([numbers.setdefault(table.signatures[n], len(numbers)) for n in present.tolist()])
        made.append(translated[inverse.reshape(-1)].astype(np.int64))
    if any(not np.array_equal(signature, made[0]) for signature in made[1:]):
        return ()
    restricted = [rows_of(table, kept) for table, kept in zip(tables, rows, strict=True)]
    listed = tuple(numbers)
    return tuple(
        replace(table, signature=signature, signatures=listed)
        for table, signature in zip(restricted, made, strict=True)
        if table is not None
    )


def rows_of(table: PriceTable, rows: np.ndarray) -> PriceTable | None:
    """Return the table restricted to some rows, or None if there are none."""
    if not len(rows):
        return None
    return replace(
        table,
        layouts=select(table.layouts, rows),
        times=tuple(replace(t, seconds=t.seconds[rows], hidden_seconds=t.hidden_seconds[rows]) for t in table.times),
        memory=tuple(replace(term, bytes=term.bytes[rows]) for term in table.memory),
        completion=table.completion[rows],
        signature=table.signature[rows],
    )


def _layout_keys(tables: tuple[PriceTable, ...]) -> list[IntArray]:
    """Return one integer a row: equal for equal layouts, across tables."""
    keys = [np.zeros(table.rows, dtype=np.int64) for table in tables]
    for name in SHARDED_FIELDS:
        columns = [np.asarray(table.layouts[name], dtype=np.int64) for table in tables]
        values, codes = np.unique(np.concatenate(columns), return_inverse=True)
        parts = np.split(codes.reshape(-1), np.cumsum([len(column) for column in columns])[:-1])
        keys = [key * len(values) + part for key, part in zip(keys, parts, strict=True)]
    return keys
