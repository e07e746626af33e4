"""From an integer program's plan to the solution: the exact period of its order, and its earliest starts."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations

from rpegc.search.solver.cycle_ratio import Arc, earliest_starts, least_period
from rpegc.search.solver.geometry import overlap
from rpegc.search.solver.problem import Choice, Problem, Template
from rpegc.search.solver.variables import Meshes


def exact_choice(
    problem: Problem,
    template: Template,
    meshes: Meshes,
    rows: Mapping[str, tuple[int, int]],
    start_ms: Mapping[str, int],
    period: int,
) -> tuple[Choice, Fraction]:
    """Return the plan with its exact period and earliest starts, keeping the order that `start_ms` and `period` show.

    `rows` maps a GPU stage to its mesh class and its row in that cell. The period is the maximum cycle ratio over the
    edges and over the chosen winding of every pair of stages that exclude each other.
    """
    names = [stage.name for stage in problem.stages]
    place = {name: index for index, name in enumerate(names)}
    milliseconds = stage_milliseconds(problem, meshes.nodes, rows)
    arcs = edge_arcs(problem, place, rows, milliseconds)
    arcs += [(place[name], place[name], Fraction(milliseconds[name]), 1) for name in names]
    for u, v in exclusions(problem, template, meshes.nodes):
        k = (start_ms[v] - start_ms[u] - milliseconds[u]) // period if period else 0
        arcs.append((place[u], place[v], Fraction(milliseconds[u]), -k))
        arcs.append((place[v], place[u], Fraction(milliseconds[v]), k + 1))
    exact = least_period(len(names), arcs)
    if exact is None or exact > period:
        raise AssertionError(f"the solver's schedule of {period} ms breaks an edge or an exclusion")
    starts = earliest_starts(len(names), arcs, Fraction(-(-exact.numerator // exact.denominator)))
    cells = {stage.name: stage.cells for stage in problem.gpu_stages}
    choice = Choice(
        template=template,
        mesh_classes=meshes.mesh_classes,
        along_gpus=meshes.along_gpus,
        nodes={name: meshes.nodes[name] for name in names if name in meshes.nodes},
        layouts={name: int(cells[name][m].layout[row]) for name, (m, row) in rows.items()},
        milliseconds={name: int(milliseconds[name]) for name in names},
        start_ms={name: int(starts[place[name]]) for name in names},
    )
    return choice, exact


def stage_milliseconds(
    problem: Problem, nodes: Mapping[str, int], rows: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """Return what each stage takes with the chosen rows, syncs and functions included."""
    cells = {stage.name: stage.cells[rows[stage.name][0]] for stage in problem.gpu_stages}
    times = {name: int(cell.milliseconds[rows[name][1]]) for name, cell in cells.items()}
    times |= {stage.name: stage.milliseconds for stage in problem.host_stages}
    for sync in problem.syncs:
        signatures = {name: int(cells[name].signature[rows[name][1]]) for name in (sync.source, sync.target)}
        i = sync.source_signatures.index(signatures[sync.source])
        j = sync.target_signatures.index(signatures[sync.target])
        matrix = sync.same if nodes[sync.source] == nodes[sync.target] else sync.across
        times[sync.name] = int(matrix[i, j])
    return times


def edge_arcs(
    problem: Problem, place: Mapping[str, int], rows: Mapping[str, tuple[int, int]], milliseconds: Mapping[str, int]
) -> list[Arc]:
    """Return the arcs of all edges; a streamed edge waits for the chunk that is latest, in whole milliseconds."""
    cells = {stage.name: stage.cells for stage in problem.gpu_stages}
    arcs: list[Arc] = []
    for edge in problem.edges:
        wait = milliseconds[edge.source]
        if edge.chunks > 1:
            c, step = edge.chunks, milliseconds[edge.target]
            if edge.source in rows:
                m, row = rows[edge.source]
                curve = cells[edge.source][m].completion[row]
                done = [c * int(curve[j * len(curve) // c - 1]) for j in range(1, c + 1)]
            else:
                done = [j * milliseconds[edge.source] for j in range(1, c + 1)]
            wait = max(-((j * step - done[j]) // c) for j in range(c))
        arcs.append((place[edge.source], place[edge.target], Fraction(wait), edge.distance))
    return arcs


def exclusions(problem: Problem, template: Template, nodes: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of stages that may not run at once, in declared order."""
    held: dict[str, tuple[int, ...]] = {name: (node,) for name, node in nodes.items()}
    held |= {sync.name: (nodes[sync.source], nodes[sync.target]) for sync in problem.syncs}
    functions = {stage.name: stage for stage in problem.host_stages}
    pairs: list[tuple[str, str]] = []
    for a, b in combinations([stage.name for stage in problem.stages], 2):
        named = (a in functions and b in functions[a].excludes) or (b in functions and a in functions[b].excludes)
        if named or any(overlap(template, g, h) for g in held.get(a, ()) for h in held.get(b, ())):
            pairs.append((a, b))
    return pairs
