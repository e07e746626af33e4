"""Boxes of layout rows: what the relaxed problem sees instead of thousands of rows.

A box stands for some rows of one cell. It promises the best of each of them at once (the componentwise minimum) and
may pose as any of their signatures and tie keys: a plan over boxes costs at most what the best plan over their rows
costs. A box of one row is that row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpegc.search.solver.problem import Cell, Problem, SyncStage
from rpegc.search.solver.prune import visibility_of
from rpegc.target import FloatArray, IntArray

CellKey = tuple[str, int]
"""A GPU stage and a mesh class."""


@dataclass(frozen=True, slots=True)
class Box:
    """Rows of one cell and the least of each of their columns.

    `held` units stay on every GPU of the mesh while other stages run, `peak` while this stage runs itself; both
    include `weights`, which sharing may save. `signatures` are sorted and unique; `ties` holds one set a tie group.
    """

    rows: IntArray
    milliseconds: int
    completion: tuple[int, ...]
    weights: int
    held: int
    peak: int
    host: int
    order: int
    signatures: IntArray
    signature_set: frozenset[int]
    ties: tuple[frozenset[int], ...]


Boxes = Mapping[CellKey, tuple[Box, ...]]


def box_of(cell: Cell, rows: IntArray) -> Box:
    """Return the box of some rows of a cell."""
    weights = int(cell.weights[rows].min())
    signatures = np.unique(cell.signature[rows])
    return Box(
        rows=rows,
        milliseconds=int(cell.milliseconds[rows].min()),
        completion=tuple(cell.completion[rows].min(axis=0).tolist()),
        weights=weights,
        held=weights + int(cell.resident[rows].min()),
        peak=weights + int((cell.resident[rows] + cell.working[rows]).min()),
        host=int(cell.host[rows].min()),
        order=int(cell.layout[rows].min()),
        signatures=signatures,
        signature_set=frozenset(signatures.tolist()),
        ties=tuple(frozenset(cell.ties[rows, group].tolist()) for group in range(cell.ties.shape[1])),
    )


def cells_of(problem: Problem) -> dict[CellKey, Cell]:
    """Return all cells that have rows, in declared order of stages and ascending mesh class."""
    return {(stage.name, m): cell for stage in problem.gpu_stages for m, cell in sorted(stage.cells.items())}


class Splitter:
    """Halves boxes where their rows differ most, measured by what the difference can cost.

    Time (and the mean cost of syncs) counts as a share of the period, memory as a share of its capacity. The cut lies
    in the middle of the column's range, so that the error of the relaxation halves.
    """

    def __init__(self, problem: Problem, period: int) -> None:
        self.cells = cells_of(problem)
        self._features = {key: _features(problem, key, cell, max(1, period)) for key, cell in self.cells.items()}

    def halves(self, key: CellKey, box: Box) -> tuple[Box, ...]:
        """Return two boxes for one, or the box itself if its rows are equal in all that matters."""
        features = self._features[key][box.rows]
        low, high = features.min(axis=0), features.max(axis=0)
        widest = int((high - low).argmax())
        if high[widest] <= low[widest]:
            return (box,)
        below = features[:, widest] <= (low[widest] + high[widest]) / 2
        return (box_of(self.cells[key], box.rows[below]), box_of(self.cells[key], box.rows[~below]))

    def width(self, key: CellKey, box: Box) -> float:
        """Return the spread of the widest column: 0 for a box that is as good as a row."""
        features = self._features[key][box.rows]
        return float((features.max(axis=0) - features.min(axis=0)).max())


def _features(problem: Problem, key: CellKey, cell: Cell, period: int) -> FloatArray:
    """Return one column for each thing in which rows of a cell may differ, scaled by what a difference can cost."""
    stage = key[0]
    visible = visibility_of(problem, stage)
    held = cell.weights + cell.resident
    columns: list[NDArray[np.floating[Any]]] = [
        cell.milliseconds / period,
        held / max(1, problem.device_capacity),
        (held + cell.working) / max(1, problem.device_capacity),
        cell.host / max(1, problem.host_capacity),
    ]
    if any(edge.source == stage and edge.chunks > 1 for edge in problem.edges):
        columns.extend(cell.completion[:, part] / period for part in range(cell.completion.shape[1] - 1))
    for sync in problem.syncs:
        for matrix in (sync.across, sync.same):
            if stage == sync.source:
                columns.append(matrix.mean(axis=1)[_positions(sync.source_signatures, cell.signature)] / period)
            if stage == sync.target:
                columns.append(matrix.mean(axis=0)[_positions(sync.target_signatures, cell.signature)] / period)
    if visible.shared:
        share = cell.weights.max() / max(1, problem.device_capacity)
        columns.append(share * _rank(cell.signature) / max(1, len(np.unique(cell.signature)) - 1))
    if visible.signature:
        columns.append(_rank(cell.signature) * LAST_RESORT)
    columns.extend(_rank(cell.ties[:, group]) * TIE_WIDTH for group in visible.ties)
    return np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])


LAST_RESORT = 1e-6
"""Width of one step between signatures: only rows that are equal in all else are split by it."""
TIE_WIDTH = 0.2
"""Width of one step between tie keys: boxes come to one key early, since stages that may differ relax the most.

Measured on PPO with 64 GPUs and tied Megatron layouts: 40 masters prove what takes 120 with a width of 0.01.
"""


def _rank(values: IntArray) -> IntArray:
    """Number equal values alike, from 0, in ascending order."""
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _positions(listed: tuple[int, ...], wanted: IntArray) -> IntArray:
    """Return where each wanted signature stands in a sync's list."""
    values = np.asarray(listed, dtype=np.int64)
    order = np.argsort(values)
    return order[np.searchsorted(values, wanted, sorter=order)].astype(np.int64)


def sync_costs(sync: SyncStage, sources: list[Box], targets: list[Box]) -> tuple[IntArray, IntArray]:
    """Return the least milliseconds (across meshes, on one mesh) for each pair of a source and a target box."""
    rows, row_starts = _concatenated(sync.source_signatures, sources)
    columns, column_starts = _concatenated(sync.target_signatures, targets)

    def least(matrix: IntArray) -> IntArray:
        by_row = np.minimum.reduceat(matrix[rows], row_starts, axis=0)
        return np.minimum.reduceat(by_row[:, columns], column_starts, axis=1)

    return least(sync.across), least(sync.same)


def _concatenated(listed: tuple[int, ...], boxes: list[Box]) -> tuple[IntArray, IntArray]:
    """Return the positions of all boxes' signatures end to end, and where each box begins."""
    positions = np.concatenate([_positions(listed, box.signatures) for box in boxes])
    lengths = [len(box.signatures) for box in boxes]
    return positions, np.cumsum([0, *lengths[:-1]])
