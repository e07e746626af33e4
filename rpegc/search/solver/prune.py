"""Fewer rows, same optimum: weights that nobody shares become resident, dominated rows go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rpegc.search.solver.problem import Cell, GpuStage, Problem
from rpegc.target import BoolArray, IntArray, packed


@dataclass(frozen=True, slots=True)
class Visibility:
    """What other stages see of a stage's rows: its signature (a sync or a sharing group), and these tie groups."""

    signature: bool
    shared: bool
    ties: tuple[int, ...]


def visibility_of(problem: Problem, stage: str) -> Visibility:
    """Return what other stages see of this stage's rows."""
    moved = any(stage in (sync.source, sync.target) for sync in problem.syncs)
    shared = any(stage in group for group in problem.sharing)
    ties = tuple(index for index, group in enumerate(problem.ties) if stage in group.stages)
    return Visibility(moved or shared, shared, ties)


def normalise(problem: Problem) -> Problem:
    """Return the problem with the weights of every stage that shares with nobody counted as resident."""

    def counted(cell: Cell) -> Cell:
        return replace(cell, resident=cell.resident + cell.weights, weights=np.zeros_like(cell.weights))

    return _map_cells(problem, lambda stage, cell: cell if visibility_of(problem, stage).shared else counted(cell))


def prune(problem: Problem) -> Problem:
    """Return the problem without dominated rows.

    A row is dominated by another of the same stage and mesh class that looks the same to other stages and is no worse
    in time, at every part of the completion curve, in resident (and resident plus working) units and in host units;
    among equal rows the one with the smallest layout index stays. Exact for the period, the fewest nodes and the
    headroom: whatever a plan does with the dominated row, it can do with the other one.
    """
    streamed = {edge.source: edge.chunks for edge in problem.edges if edge.chunks > 1}

    def undominated(stage: str, cell: Cell) -> Cell:
        costs = [cell.milliseconds, cell.resident + cell.weights, cell.host]
        costs.append(cell.resident + cell.weights + cell.working)
        if stage in streamed:
            costs.extend(cell.completion[:, part] for part in range(cell.completion.shape[1] - 1))
        return cell.take(pareto_rows(np.column_stack(costs), _visible_keys(problem, stage, cell), cell.layout))

    return _map_cells(problem, undominated)


def pareto_rows(costs: IntArray, keys: IntArray, order: IntArray) -> IntArray:
    """Return the rows that no row with equal key undercuts in every column, in ascending order of row number.

    `costs` has shape (rows, columns), `keys` (rows, key columns); of equal rows the one of smallest `order` stays.
    """
    rank = np.lexsort((order, *costs.T[::-1]))
    group = np.unique(packed(list(keys.T)), return_inverse=True)[1] if keys.shape[1] else np.zeros(len(order), int)
    by_group = rank[np.argsort(group[rank], kind="stable")]
    starts = np.flatnonzero(np.diff(group[by_group], prepend=-1))
    sizes = np.diff(starts, append=len(by_group))
    kept = [by_group[starts[sizes == 1]]]
    for size in np.unique(sizes[(sizes > 1) & (sizes <= WIDEST_AT_ONCE)]).tolist():
        members = by_group[starts[sizes == size][:, None] + np.arange(size)]
        for part in np.array_split(members, max(1, members.size * size // COMPARISONS_AT_ONCE)):
            kept.append(part[~_undercut(costs[part])])
    kept += [_front(costs, by_group[start : start + size]) for start, size in _wide(starts, sizes)]
    return np.sort(np.concatenate(kept))


WIDEST_AT_ONCE = 256
"""Groups of up to so many rows are compared pair by pair, all groups of one size together."""
COMPARISONS_AT_ONCE = 4_000_000


def _undercut(costs: IntArray) -> BoolArray:
    """Return which rows of each group an earlier row undercuts; `costs` has shape (groups, rows, columns).

    Rows come in lexicographic order, so a later row never dominates an earlier one.
    """
    rows = costs.shape[1]
    below = np.broadcast_to(np.triu(np.ones((rows, rows), dtype=bool), 1), (len(costs), rows, rows)).copy()
    for column in range(costs.shape[2]):
        below &= costs[:, :, None, column] <= costs[:, None, :, column]
    return np.asarray(np.any(below, axis=1))


def _wide(starts: IntArray, sizes: IntArray) -> list[tuple[int, int]]:
    wide = sizes > WIDEST_AT_ONCE
    return list(zip(starts[wide].tolist(), sizes[wide].tolist(), strict=True))


def _front(costs: IntArray, members: IntArray) -> IntArray:
    """Return the rows of one large group, in lexicographic order, that no earlier one undercuts."""
    kept: list[int] = []
    front = np.empty((0, costs.shape[1]), dtype=costs.dtype)
    for start in range(0, len(members), WIDEST_AT_ONCE):
        part = members[start : start + WIDEST_AT_ONCE]
        held = np.all(front[None, :, :] <= costs[part][:, None, :], axis=2)
        part = part[~np.any(held, axis=1)]
        part = part[~_undercut(costs[part][None])[0]]
        front = np.concatenate((front, costs[part]))
        kept += part.tolist()
    return np.asarray(kept, dtype=np.int64)


def _visible_keys(problem: Problem, stage: str, cell: Cell) -> IntArray:
    """Return the key columns within which rows may dominate each other."""
    visible = visibility_of(problem, stage)
    columns = [cell.ties[:, index] for index in visible.ties]
    if visible.signature:
        columns.append(cell.signature)
    return np.column_stack(columns) if columns else np.empty((cell.rows, 0), dtype=np.int64)


def _map_cells(problem: Problem, change: Callable[[str, Cell], Cell]) -> Problem:
    """Return the problem with every non-empty cell changed; empty cells go."""
    stages = tuple(
        GpuStage(stage.name, {m: change(stage.name, cell) for m, cell in sorted(stage.cells.items()) if cell.rows})
        if isinstance(stage, GpuStage)
        else stage
        for stage in problem.stages
    )
    return replace(problem, stages=stages)
