"""A price table: what every layout of one stage on one mesh class costs, as a bill of named terms.

One row per layout; every array has one element per row. Seconds and bytes, SI.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpegc.target import Columns, FloatArray, IntArray, MeshClass

PROVENANCES = ("measured", "fitted", "spec", "assumed")
"""How a figure is known: read off a measurement; fitted to measurements; a vendor's statement; our assumption."""

RESIDENCES = ("weights", "resident", "working", "host")
"""Where bytes count: `weights` and `resident` stay on the GPU while other stages run there (`weights` are shared
between stages with equal model, mesh and signature); `working` only while the stage runs; `host` per node."""


@dataclass(frozen=True, slots=True)
class TimeTerm:
    """A named share of a stage's time: exposed `seconds`, and `hidden_seconds` that other work covers."""

    name: str
    seconds: FloatArray
    hidden_seconds: FloatArray
    provenance: str
    source: str


@dataclass(frozen=True, slots=True)
class MemoryTerm:
    """A named amount of memory: bytes per GPU (or per node, if `residence` is "host")."""

    name: str
    bytes: FloatArray
    residence: str
    provenance: str
    source: str


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices of all layouts of one stage on one mesh class.

    `completion` has shape (rows, parts): seconds from the stage's start until the j-th part of its samples is done
    (the last column equals the total). `signature` (rows) numbers what other stages can see: equal signatures have
    equal weights layout, hence equal transitions and one shared copy. `signatures` lists, per number, its sorted
    (field, value) pairs. `interval` holds the multipliers (low, high) of an 80 % interval on the seconds.
    """

    stage: str
    mesh: MeshClass
    layouts: Columns
    times: tuple[TimeTerm, ...]
    memory: tuple[MemoryTerm, ...]
    completion: FloatArray
    signature: IntArray
    signatures: tuple[tuple[tuple[str, int], ...], ...]
    interval: tuple[float, float]

    @property
    def rows(self) -> int:
        """Number of layouts."""
        return len(self.signature)

    @property
    def seconds(self) -> FloatArray:
        """Total exposed seconds per row."""
        total = np.zeros(self.rows)
        for term in self.times:
            total = total + term.seconds
        return total

    def bytes(self, residence: str) -> FloatArray:
        """Total bytes per row of one residence."""
        total = np.zeros(self.rows)
        for term in self.memory:
            if term.residence == residence:
                total = total + term.bytes
        return total


@dataclass(frozen=True, slots=True)
class PairTable:
    """Seconds of a weight sync for each pair of signatures (source rows, target columns).

    `across` holds the cost when the two stages sit on different meshes, `same` when they share one mesh.
    """

    across: FloatArray
    same: FloatArray
    provenance: str
    source: str
