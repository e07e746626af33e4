"""What weight moves cost: the constraint that ties a sync's duration to the pair of layouts at its ends."""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from rpegc.search.solver.boxes import Box, sync_costs
from rpegc.search.solver.problem import SyncStage
from rpegc.search.solver.variables import Data, Option, Variables
from rpegc.target import IntArray


def syncs_take_their_time(data: Data, v: Variables) -> None:
    """A sync takes what the pair of chosen boxes costs: on one mesh or across two (boxes: the cheapest pair)."""
    for sync in data.problem.syncs:
        cost = _pair_costs(data, v, sync)
        source, target = v.options[sync.source], v.options[sync.target]
        if len(np.unique(cost, axis=0)) > len(np.unique(cost, axis=1).T):
            cost, source, target = cost.T, target, source
        duration = v.duration[sync.name]
        # Redundant: whatever the other end is, each end alone costs at least its cheapest partner.
        for options, least in ((source, cost.min(axis=1)), (target, cost.min(axis=0))):
            chosen = [option.chosen for option in options]
            v.model.add(duration >= cp_model.LinearExpr.weighted_sum(chosen, least.tolist()))
        others = [option.chosen for option in target]
        for row, members in _equal_rows(cost):
            if row.min() == row.max():
                continue
            literal = source[members[0]].chosen
            if len(members) > 1:
                literal = v.model.new_bool_var(f"costs[{sync.name},{members[0]}]")
                v.model.add_exactly_one([*(source[index].chosen for index in members), ~literal])
            v.model.add(duration >= cp_model.LinearExpr.weighted_sum(others, row.tolist())).only_enforce_if(literal)


def _pair_costs(data: Data, v: Variables, sync: SyncStage) -> IntArray:
    """Return the milliseconds for each pair of a source and a target option, clipped just above the cutoff.

    Clipping at the cutoff itself would let a plan in that takes longer than the cutoff.
    """
    source, target = v.options[sync.source], v.options[sync.target]
    sources, at_source = _unique_boxes(source)
    targets, at_target = _unique_boxes(target)
    across, same = sync_costs(sync, sources, targets)
    node = np.equal.outer([o.node for o in source], [o.node for o in target])
    shape = np.equal.outer([o.mesh_class for o in source], [o.mesh_class for o in target])
    pairs = np.ix_(at_source, at_target)
    cost = np.where(node, np.where(shape, same[pairs], data.cutoff + 1), across[pairs])
    return np.minimum(cost, data.cutoff + 1)


def _unique_boxes(options: list[Option]) -> tuple[list[Box], list[int]]:
    """Return the boxes without repetition, and where each option's box stands among them."""
    place: dict[int, int] = {}
    boxes: list[Box] = []
    for option in options:
        if id(option.box) not in place:
            place[id(option.box)] = len(boxes)
            boxes.append(option.box)
    return boxes, [place[id(option.box)] for option in options]


def _equal_rows(matrix: IntArray) -> list[tuple[IntArray, list[int]]]:
    """Group the equal rows of a matrix, in order of first appearance."""
    groups: dict[bytes, list[int]] = {}
    for index, row in enumerate(np.ascontiguousarray(matrix)):
        groups.setdefault(row.tobytes(), []).append(index)
    return [(matrix[members[0]], members) for members in groups.values()]
