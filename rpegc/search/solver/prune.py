"""Fewer rows, same optimum: weights that nobody shares become resident, dominated rows go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rpegc.search.solver.problem import Cell, GpuStage, Problem
from rpegc.target import BoolArray, IntArray


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
    group = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1) if keys.shape[1] else np.zeros(len(order), int)
    by_group = rank[np.argsort(group[rank], kind="stable")]
    # Rows come in lexicographic order, so a later row never dominates an earlier one.
    many = len(order) > TOGETHER
    boundaries = np.flatnonzero(np.diff(group[by_group])) + 1 if many else np.zeros(0, dtype=np.int64)
    kept = [_front(costs, group, members) for members in np.split(by_group, boundaries)]
    return np.sort(np.concatenate(kept)).astype(np.int64)


TOGETHER = 400
"""Rows up to which all pairs of a cell are compared at once, whatever their groups."""
BLOCK = 128
"""Rows that are compared with a front at once."""


def _front(costs: IntArray, group: IntArray, members: IntArray) -> IntArray:
    """Return the members, in lexicographic order by group, that no earlier one of their group undercuts."""
    front = members[:0]
    for start in range(0, len(members), BLOCK):
        block = members[start : start + BLOCK]
        if len(front):
            block = block[~_dominated(costs, group, front, block).any(axis=0)]
        within = np.triu(_dominated(costs, group, block, block), k=1)
        front = np.concatenate((front, block[~within.any(axis=0)]))
    return front


def _dominated(costs: IntArray, group: IntArray, one: IntArray, other: IntArray) -> BoolArray:
    """Return for each pair whether the first row is in the group of the second and no worse in every column."""
    below: BoolArray = group[one][:, None] == group[other][None, :]
    for column in costs.T:
        below &= column[one][:, None] <= column[other][None, :]
    return below


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
