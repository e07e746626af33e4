"""What a complete plan occupies: nodes and GPUs, free device memory, host memory, its layouts' place in the tables."""

from __future__ import annotations

from collections.abc import Mapping

from rpegc.search.solver.problem import Cell, Problem, Template
from rpegc.search.solver.variables import Meshes

Rows = Mapping[str, tuple[int, int]]
"""Mesh class and row of each GPU stage."""


def devices_used(problem: Problem, template: Template, meshes: Meshes) -> int:
    """Return a number that ranks plans by the nodes they occupy, then by the GPUs: nodes * (GPUs + 1) + GPUs."""
    occupied = set(meshes.nodes.values())

    def count(node: int) -> tuple[int, int]:
        below = [count(child) for child in template.children(node)]
        index = meshes.mesh_classes[node]
        own = problem.mesh_classes[index] if node in occupied and index is not None else None
        beside = max if meshes.along_gpus[node] else sum
        nodes = max(own.nodes if own else 0, beside([n for n, _ in below] or [0]))
        return nodes, max(own.gpus if own else 0, sum(gpus for _, gpus in below))

    nodes, gpus = count(0)
    return nodes * (problem.cluster.gpus + 1) + gpus


def free_units(problem: Problem, template: Template, meshes: Meshes, rows: Rows) -> int:
    """Return the units that stay free on the fullest GPU (negative: the plan does not fit)."""
    cells = {name: _read(problem, name, rows) for name in rows}
    free = problem.device_capacity
    for leaf in template.leaves:
        here = [name for name in rows if meshes.nodes[name] in template.path(leaf)]
        held = sum(int(cell.resident[row]) for cell, row in (cells[name] for name in here))
        working = max((int(cell.working[row]) for cell, row in (cells[name] for name in here)), default=0)
        copies: dict[tuple[str, int, int], int] = {}
        for name in here:
            cell, row = cells[name]
            owner = next((group[0] for group in problem.sharing if name in group), name)
            copies[owner, meshes.nodes[name], int(cell.signature[row])] = int(cell.weights[row])
        free = min(free, problem.device_capacity - held - working - sum(copies.values()))
    return free


def host_units(problem: Problem, template: Template, meshes: Meshes, rows: Rows) -> int:
    """Return the units of host memory on the fullest node."""

    def load(node: int) -> int:
        here = (_read(problem, name, rows) for name, home in meshes.nodes.items() if home == node)
        below = [load(child) for child in template.children(node)] or [0]
        return sum(int(cell.host[row]) for cell, row in here) + (max, sum)[meshes.along_gpus[node]](below)

    return load(0)


def order_of(problem: Problem, rows: Rows) -> int:
    """Return the sum of the layouts' indices in their price tables: the canonical plan has the smallest."""
    return sum(int(cell.layout[row]) for cell, row in (_read(problem, name, rows) for name in rows))


def _read(problem: Problem, name: str, rows: Rows) -> tuple[Cell, int]:
    stage = next(stage for stage in problem.gpu_stages if stage.name == name)
    m, row = rows[name]
    return stage.cells[m], row
