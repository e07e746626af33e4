"""The greedy baseline: every stage on its first home, the fastest layouts that fit, one stage after the other."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np

from rpegc.search.solver.geometry import must_shrink
from rpegc.search.solver.measures import Rows, free_units, host_units
from rpegc.search.solver.problem import Choice, Limit, Problem, Solution, Status, Template
from rpegc.search.solver.schedule import exact_choice, stage_milliseconds
from rpegc.search.solver.variables import Meshes
from rpegc.target import BoolArray, FloatArray

PRICES_OF_MEMORY_MS = (0.0, *(2.0**power for power in range(4, 24)))
"""Milliseconds that a whole GPU (or host) of memory is worth, from nothing up: the first price that fits is taken."""


def solve(problem: Problem, limit: Limit, cutoff: int | None = None) -> Solution:
    """Return the best plan over the shapes of the stages' first homes; proves nothing (`bound` 0)."""
    del limit
    problem.check()
    template = problem.ladder[-1]
    best: tuple[Choice, Fraction] | None = None
    shapes = sorted(_shaped(problem, template), key=lambda meshes: _least_load(problem, meshes))
    for meshes in shapes:
        ceiling = best[1] if best is not None else cutoff
        if ceiling is not None and _least_load(problem, meshes) >= ceiling:
            break
        rows = _fastest_rows(problem, template, meshes)
        if rows is not None:
            plan = _one_after_the_other(problem, template, meshes, rows)
            if ceiling is None or plan[1] < ceiling:
                best = plan
    if best is None:
        return Solution(None, None, 0, Status.LIMIT, ("period",))
    return Solution(best[0], best[1], 0, Status.LIMIT, ("period",))


def _shaped(problem: Problem, template: Template) -> Iterator[Meshes]:
    """Yield the shapes of the first homes that fit side by side, along nodes or along GPUs."""
    nodes = {stage.name: template.home(stage.name)[0] for stage in problem.gpu_stages}
    for group in problem.ties:
        common = [g for g in template.home(group.stages[0]) if all(g in template.home(s) for s in group.stages)]
        nodes |= dict.fromkeys(group.stages, common[0]) if group.same_mesh and common else {}
    used = sorted({g for node in nodes.values() for g in template.path(node)} - {0})
    whole = next((m for m, shape in enumerate(problem.mesh_classes) if shape == problem.cluster), None)
    for picked in product(range(len(problem.mesh_classes)), repeat=len(used)):
        classes = dict(zip(used, picked, strict=True))
        cuts = [_cut(problem, template, classes, parent) for parent in range(len(template.parents))]
        shapes = (whole, *(classes.get(g) for g in range(1, len(template.parents))))
        missing = any(shapes[nodes[s.name]] not in s.cells for s in problem.gpu_stages)
        if None not in cuts and not missing:
            yield Meshes(shapes, tuple(bool(cut) for cut in cuts), nodes)


def _cut(problem: Problem, template: Template, classes: dict[int, int], parent: int) -> bool | None:
    """Return how the children of a node are cut (along GPUs or not), None if they do not fit."""
    used = [g for g in template.children(parent) if g in classes]
    children = [problem.mesh_classes[classes[g]] for g in used]
    outer = problem.mesh_classes[classes[parent]] if parent in classes else problem.cluster
    if any(shape.nodes > outer.nodes or shape.gpus_per_node > outer.gpus_per_node for shape in children):
        return None
    twice = (must_shrink(problem, template, g) and shape == outer for g, shape in zip(used, children, strict=True))
    if any(twice):
        return None
    if sum(shape.nodes for shape in children) <= outer.nodes:
        return False
    return True if sum(shape.gpus_per_node for shape in children) <= outer.gpus_per_node else None


def _least_load(problem: Problem, meshes: Meshes) -> int:
    """Return the time of the busiest mesh if every stage on it takes its fastest row."""
    load = [0] * len(meshes.mesh_classes)
    for stage in problem.gpu_stages:
        index = meshes.mesh_classes[meshes.nodes[stage.name]]
        if index is not None:
            load[meshes.nodes[stage.name]] += int(stage.cells[index].milliseconds.min())
    return max(load)


def _fastest_rows(problem: Problem, template: Template, meshes: Meshes) -> Rows | None:
    """Return the fastest rows that fit, at the lowest price of memory at which they do."""
    for price in PRICES_OF_MEMORY_MS:
        rows = _cheapest_rows(problem, meshes, price)
        if rows is None:
            return None
        fits = free_units(problem, template, meshes, rows) >= 0
        if fits and host_units(problem, template, meshes, rows) <= problem.host_capacity:
            return rows
    return None


def _cheapest_rows(problem: Problem, meshes: Meshes, price: float) -> Rows | None:
    """Return for each stage the row of least time plus priced memory, among rows that agree on every tie."""
    scores: dict[str, FloatArray] = {}
    allowed: dict[str, BoolArray] = {}
    classes: dict[str, int] = {}
    for stage in problem.gpu_stages:
        index = meshes.mesh_classes[meshes.nodes[stage.name]]
        if index is None:
            return None
        cell, classes[stage.name] = stage.cells[index], index
        device = (2 * (cell.weights + cell.resident) + cell.working) / max(1, problem.device_capacity)
        scores[stage.name] = cell.milliseconds + price * (device + cell.host / max(1, problem.host_capacity))
        allowed[stage.name] = np.ones(cell.rows, dtype=np.bool_)
    cells = {stage.name: stage.cells[classes[stage.name]] for stage in problem.gpu_stages}
    for number, group in enumerate(problem.ties):
        keys = [set(cells[name].ties[allowed[name], number].tolist()) for name in group.stages]
        worth = {
            key: sum(scores[n][allowed[n] & (cells[n].ties[:, number] == key)].min() for n in group.stages)
            for key in sorted(set.intersection(*keys))
        }
        if not worth:
            return None
        agreed = min(worth, key=lambda key: worth[key])
        for name in group.stages:
            allowed[name] &= cells[name].ties[:, number] == agreed
    return {n: (classes[n], int(np.where(allowed[n], scores[n], np.inf).argmin())) for n in scores}


def _one_after_the_other(problem: Problem, template: Template, meshes: Meshes, rows: Rows) -> tuple[Choice, Fraction]:
    """Return the plan whose stages take turns in an order that the edges of distance 0 allow."""
    order: list[str] = []
    waiting = [stage.name for stage in problem.stages]
    while waiting:
        blocked = {edge.target for edge in problem.edges if edge.distance == 0 and edge.source in waiting}
        order.append(next(name for name in waiting if name not in blocked))
        waiting.remove(order[-1])
    times = stage_milliseconds(problem, meshes.nodes, rows)
    starts, period = dict.fromkeys(order, 0), 0
    for name in order:
        starts[name] = period
        period += times[name]
    return exact_choice(problem, template, meshes, rows, starts, period)
