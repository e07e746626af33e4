"""The exhaustive reference: every mesh, every row, every order and every winding of a small problem.

Orders that cannot matter are not enumerated one by one: while the earliest starts of a partial order keep all other
pairs apart, every completion of it is at least as long.

Shares no code with the integer program, so that each can check the other: shapes, memory, sync times and periods are
worked out again from the definitions in `problem`. Candidates are tried in the order of a load bound, so that most
need no schedule. For problems of a few stages and a few layouts each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

from rpegc.search.solver.problem import Cell, Choice, Limit, Problem, Solution, Status, Template
from rpegc.target import MeshClass

Arc = tuple[int, int, int, int]
"""From, to, least milliseconds between the starts, distance in periods."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan without a schedule: shapes, cuts, homes, rows (cell and row of each GPU stage), times in stage order."""

    shapes: tuple[int | None, ...]
    cuts: tuple[bool, ...]
    nodes: dict[str, int]
    rows: dict[str, tuple[Cell, int]]
    milliseconds: tuple[int, ...]
    least: int


def solve(problem: Problem, limit: Limit, cutoff: int | None = None) -> Solution:
    """Return the optimal plan by trying all of them; `limit` is not consulted."""
    del limit
    problem.check()
    template = problem.ladder[-1]
    found = [
        candidate
        for shapes, cuts in _shapes(problem, template)
        for nodes in _homes(problem, template, shapes)
        for candidate in _candidates(problem, template, shapes, cuts, nodes)
    ]
    found.sort(key=lambda candidate: candidate.least)
    best, choice = cutoff, None
    for candidate in found:
        if best is not None and candidate.least >= best:
            break
        scheduled = _schedule(problem, template, candidate, best)
        if scheduled is not None:
            best, starts = scheduled
            choice = _choice(problem, template, candidate, starts)
    statistics = {"raw_rows": problem.rows, "rows": problem.rows, "candidates": len(found)}
    if choice is None or best is None:
        status = Status.INFEASIBLE if cutoff is None else Status.CUTOFF
        return Solution(None, None, cutoff or 0, status, statistics=statistics)
    return Solution(choice, Fraction(best), best, Status.PROVEN, statistics=statistics)


# --- Meshes ---------------------------------------------------------------------------------------------------------


def _shapes(problem: Problem, template: Template) -> Iterator[tuple[tuple[int | None, ...], tuple[bool, ...]]]:
    """Yield all shapes of the tree nodes that fit, with every cut (along GPUs or not) under which they do."""
    whole = [m for m, shape in enumerate(problem.mesh_classes) if shape == problem.cluster]
    menu = (None, *range(len(problem.mesh_classes)))
    inner = [g for g in range(len(template.parents)) if g in template.parents[1:]]
    for rest in product(menu, repeat=len(template.parents) - 1):
        shapes = ((whole[0] if whole else None), *rest)
        for flags in product((False, True), repeat=len(inner)):
            cut = dict(zip(inner, flags, strict=True))
            if all(_fits(problem, template, shapes, parent, cut[parent]) for parent in inner):
                yield shapes, tuple(cut.get(g, False) for g in range(len(template.parents)))


def _fits(problem: Problem, template: Template, shapes: tuple[int | None, ...], parent: int, along_gpus: bool) -> bool:
    """Whether the children of one node lie side by side in it, under another shape than its own where that matters."""
    children = [g for g in range(1, len(shapes)) if template.parents[g] == parent and shapes[g] is not None]

    def shape_of(node: int) -> MeshClass | None:
        index = shapes[node]
        return problem.cluster if node == 0 else None if index is None else problem.mesh_classes[index]

    outer = shape_of(parent)
    if outer is None:
        return not children
    inner = [shape for g in children if (shape := shape_of(g)) is not None]
    if any(shape.nodes > outer.nodes or shape.gpus_per_node > outer.gpus_per_node for shape in inner):
        return False
    for g, shape in zip(children, inner, strict=True):
        inside = [stage for stage in problem.gpu_stages if g in template.home(stage.name)]
        if shape == outer and all(parent in template.home(stage.name) for stage in inside):
            return False
    if along_gpus:
        return sum(shape.gpus_per_node for shape in inner) <= outer.gpus_per_node
    return sum(shape.nodes for shape in inner) <= outer.nodes


def _homes(problem: Problem, template: Template, shapes: tuple[int | None, ...]) -> Iterator[dict[str, int]]:
    """Yield all homes of the GPU stages on shaped nodes that leave no shaped node without a stage in its subtree."""
    names = [stage.name for stage in problem.gpu_stages]
    open_nodes = [
        [g for g in template.home(stage.name) if shapes[g] is not None and shapes[g] in stage.cells]
        for stage in problem.gpu_stages
    ]
    shaped = {g for g in range(1, len(shapes)) if shapes[g] is not None}
    for homes in product(*open_nodes):
        covered = {ancestor for home in homes for ancestor in template.path(home)}
        if shaped <= covered:
            yield dict(zip(names, homes, strict=True))


# --- Rows -----------------------------------------------------------------------------------------------------------


def _candidates(
    problem: Problem,
    template: Template,
    shapes: tuple[int | None, ...],
    cuts: tuple[bool, ...],
    nodes: dict[str, int],
) -> Iterator[Candidate]:
    """Yield all rows on given meshes that agree with ties and fit into memory."""
    for group in problem.ties:
        if group.same_mesh and len({nodes[name] for name in group.stages}) > 1:
            return
    cells: dict[str, Cell] = {}
    for stage in problem.gpu_stages:
        index = shapes[nodes[stage.name]]
        if index is not None:
            cells[stage.name] = stage.cells[index]
    for picked in product(*(range(cell.rows) for cell in cells.values())):
        rows = {name: (cells[name], row) for name, row in zip(cells, picked, strict=True)}
        if not _ties_hold(problem, rows) or not _fits_memory(problem, template, cuts, nodes, rows):
            continue
        times = _times(problem, nodes, rows)
        # No stage runs twice at once; stages that share a GPU take turns.
        least = max(times.values())
        for leaf in template.leaves:
            path = template.path(leaf)
            load = sum(times[name] for name, node in nodes.items() if node in path)
            touching = [s for s in problem.syncs if nodes[s.source] in path or nodes[s.target] in path]
            least = max(least, load + sum(times[sync.name] for sync in touching))
        yield Candidate(shapes, cuts, nodes, rows, tuple(times[stage.name] for stage in problem.stages), least)


def _ties_hold(problem: Problem, rows: dict[str, tuple[Cell, int]]) -> bool:
    for index, group in enumerate(problem.ties):
        if len({int(rows[name][0].ties[rows[name][1], index]) for name in group.stages}) > 1:
            return False
    return True


def _fits_memory(
    problem: Problem,
    template: Template,
    cuts: tuple[bool, ...],
    nodes: dict[str, int],
    rows: dict[str, tuple[Cell, int]],
) -> bool:
    def read(name: str, column: str) -> int:
        cell, row = rows[name]
        return int(getattr(cell, column)[row])

    for leaf in template.leaves:
        here = [name for name, node in nodes.items() if node in template.path(leaf)]
        resident = sum(read(name, "resident") for name in here)
        largest = max((read(name, "working") for name in here), default=0)
        copies: dict[tuple[int, int, int], int] = {}
        for number, name in enumerate(here):
            groups = [index for index, group in enumerate(problem.sharing) if name in group]
            owner = groups[0] if groups else -1 - number
            copies[owner, nodes[name], read(name, "signature")] = read(name, "weights")
        if resident + largest + sum(copies.values()) > problem.device_capacity:
            return False

    def host(node: int) -> int:
        own = sum(read(name, "host") for name, home in nodes.items() if home == node)
        below = [host(child) for child in template.children(node)]
        return own + (sum(below) if cuts[node] else max(below, default=0))

    return host(0) <= problem.host_capacity


def _times(problem: Problem, nodes: dict[str, int], rows: dict[str, tuple[Cell, int]]) -> dict[str, int]:
    times = {name: int(cell.milliseconds[row]) for name, (cell, row) in rows.items()}
    times |= {stage.name: stage.milliseconds for stage in problem.host_stages}
    for sync in problem.syncs:
        (source, i), (target, j) = rows[sync.source], rows[sync.target]
        pair = (
            sync.source_signatures.index(int(source.signature[i])),
            sync.target_signatures.index(int(target.signature[j])),
        )
        matrix = sync.same if nodes[sync.source] == nodes[sync.target] else sync.across
        times[sync.name] = int(matrix[pair])
    return times


# --- Schedule -------------------------------------------------------------------------------------------------------


def _schedule(
    problem: Problem, template: Template, candidate: Candidate, below: int | None
) -> tuple[int, list[int]] | None:
    """Return the least whole period under `below`, and its starts, over all windings of all exclusive pairs."""
    names = [stage.name for stage in problem.stages]
    times = candidate.milliseconds
    pairs = _exclusive(problem, template, candidate.nodes)
    reach = 1 + max((edge.distance for edge in problem.edges), default=0)
    best: tuple[int, list[int]] | None = None

    def visit(left: list[tuple[int, int]], arcs: list[Arc], period: int, start: list[int]) -> None:
        nonlocal best
        clash = next(((u, v) for u, v in left if not _apart(start, times, u, v, period)), None)
        if clash is None:  # the earliest starts keep every pair apart: no order of them has a shorter period
            best = (period, start)
            return
        u, v = clash
        rest = [pair for pair in left if pair != clash]
        tried = []
        for k in range(-reach, reach + 1):
            wound = [*arcs, (u, v, times[u], -k), (v, u, times[v], k + 1)]
            found = _least_period(len(names), wound, period, best[0] if best is not None else below)
            if found is not None:
                tried.append((found[0], k, wound, found[1]))
        for least, _, wound, starts in sorted(tried, key=lambda one: one[:2]):
            if best is None or least < best[0]:
                visit(rest, wound, least, starts)

    arcs = _edge_arcs(problem, names, candidate)
    found = _least_period(len(names), arcs, candidate.least, below)
    if found is not None:
        visit(pairs, arcs, *found)
    return best


def _apart(start: list[int], times: tuple[int, ...], u: int, v: int, period: int) -> bool:
    """Whether some winding keeps two stages apart at given starts."""
    gap = start[v] - start[u]
    k = (gap - times[u]) // period if period else 0
    return times[u] + k * period <= gap <= (k + 1) * period - times[v]


def _least_period(count: int, arcs: list[Arc], period: int, below: int | None) -> tuple[int, list[int]] | None:
    """Raise a whole period until starts exist (Bellman and Ford); None if that takes `below` or no period does."""
    while below is None or period < below:
        start, via = [0] * count, [-1] * count
        moved = -1
        for _ in range(count + 1):
            moved = -1
            for index, (u, v, length, distance) in enumerate(arcs):
                reached = start[u] + length - distance * period
                if reached > start[v]:
                    start[v], via[v], moved = reached, index, v
            if moved < 0:
                return period, start
        node = moved
        for _ in range(count):
            node = arcs[via[node]][0]
        length, distance, at = 0, 0, node
        while True:
            arc = arcs[via[at]]
            length, distance, at = length + arc[2], distance + arc[3], arc[0]
            if at == node:
                break
        if distance <= 0:
            return None
        period = -(-length // distance)
    return None


def _edge_arcs(problem: Problem, names: list[str], candidate: Candidate) -> list[Arc]:
    arcs: list[Arc] = []
    for edge in problem.edges:
        u, v = names.index(edge.source), names.index(edge.target)
        for j in range(1, edge.chunks + 1):
            if edge.source in candidate.rows:
                cell, row = candidate.rows[edge.source]
                parts = cell.completion.shape[1]
                ready = Fraction(int(cell.completion[row, parts * j // edge.chunks - 1]))
            else:
                ready = Fraction(candidate.milliseconds[u] * j, edge.chunks)
            if edge.chunks == 1:
                ready = Fraction(candidate.milliseconds[u])
            wait = ready - Fraction((j - 1) * candidate.milliseconds[v], edge.chunks)
            arcs.append((u, v, -(-wait.numerator // wait.denominator), edge.distance))
    return arcs


def _exclusive(problem: Problem, template: Template, nodes: dict[str, int]) -> list[tuple[int, int]]:
    """Return the pairs of stages, by number, that share GPUs or exclude each other on host cores."""
    held: list[set[int]] = []
    for stage in problem.stages:
        ends = {sync.name: (sync.source, sync.target) for sync in problem.syncs}.get(stage.name, (stage.name,))
        leaves = {leaf for end in ends if end in nodes for leaf in _under(template, nodes[end])}
        held.append(leaves)
    pairs = [(u, v) for u, v in combinations(range(len(held)), 2) if held[u] & held[v]]
    names = [stage.name for stage in problem.stages]
    excluded = {frozenset((stage.name, name)) for stage in problem.host_stages for name in stage.excludes}
    numbers = combinations(range(len(names)), 2)
    return pairs + [(u, v) for u, v in numbers if {names[u], names[v]} in excluded and (u, v) not in pairs]


def _under(template: Template, node: int) -> list[int]:
    return [leaf for leaf in template.leaves if node in template.path(leaf)]


def _choice(problem: Problem, template: Template, candidate: Candidate, starts: list[int]) -> Choice:
    names = [stage.name for stage in problem.stages]
    return Choice(
        template=template,
        mesh_classes=candidate.shapes,
        along_gpus=candidate.cuts,
        nodes=candidate.nodes,
        layouts={name: int(cell.layout[row]) for name, (cell, row) in candidate.rows.items()},
        milliseconds=dict(zip(names, candidate.milliseconds, strict=True)),
        start_ms=dict(zip(names, starts, strict=True)),
    )
