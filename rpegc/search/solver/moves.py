"""States of a local search over plans, and what they cost, in plain integers: a move takes some ten microseconds.

Meshes lie directly under the cluster (or are the cluster): none within another.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from rpegc.search.solver.geometry import must_shrink
from rpegc.search.solver.problem import Choice, GpuStage, Problem, SyncStage
from rpegc.search.solver.schedule import exact_choice, exclusions
from rpegc.search.solver.variables import Meshes

Row = tuple[int, int, int, int, int, int, tuple[int, ...]]
"""Milliseconds, weights, resident, working, host, signature, ties."""
Candidate = tuple[int, int, int]
"""Tree node, mesh class, row."""


@dataclass(frozen=True, slots=True)
class State:
    """The candidate of each GPU stage. Stages on one node have one mesh class."""

    chosen: Mapping[str, Candidate]

    def shapes(self) -> dict[int, int]:
        """Return the mesh class of each node in use."""
        return {node: m for node, m, _ in self.chosen.values()}


class Tables:
    """A problem's rows as Python integers, with moves, memory and a list schedule."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.template = problem.ladder[-1]
        self._rows = {stage.name: {m: _plain(stage, m) for m in stage.cells} for stage in problem.gpu_stages}
        flat = [g for g in range(len(self.template.parents)) if self.template.parents[g] == 0]
        self._whole = next((m for m, shape in enumerate(problem.mesh_classes) if shape == problem.cluster), -1)
        self._candidates = {stage.name: self._of(stage, flat) for stage in problem.gpu_stages}
        self._ends = list(accumulate(len(self._candidates[name]) for name in self._rows))
        self._fastest = {
            (name, m): sorted(range(len(rows)), key=lambda row, rows=rows: rows[row][0])  # type: ignore[misc]
            for name, cells in self._rows.items()
            for m, rows in cells.items()
        }
        self._tied = {
            name: [(i, group) for i, group in enumerate(problem.ties) if name in group.stages] for name in self._rows
        }
        self._order = [stage.name for stage in problem.stages]
        self._waits: dict[str, list[str]] = {name: [] for name in self._order}
        for edge in problem.edges:
            if edge.distance == 0:
                self._waits[edge.target].append(edge.source)
        self._pairs: dict[tuple[int, ...], dict[str, list[str]]] = {}

    def _of(self, stage: GpuStage, flat: list[int]) -> list[Candidate]:
        return [
            (g, m, row)
            for g in self.template.home(stage.name)
            if g in flat
            for m, rows in self._rows[stage.name].items()
            if g or m == self._whole
            for row in range(len(rows))
        ]

    def start(self, choice: Choice | None) -> State | None:
        """Return the state of a plan; without one the fastest candidate of each stage's first home, if that is one."""
        if choice is not None and all(self.template.parents[g] == 0 for g in choice.nodes.values()):
            chosen = {}
            for stage in self.problem.gpu_stages:
                node = choice.nodes[stage.name]
                m = choice.mesh_classes[node]
                assert m is not None, "a stage sits on an unused mesh"
                row = stage.cells[m].layout.tolist().index(choice.layouts[stage.name])
                chosen[stage.name] = (node, m, row)
            return State(chosen)
        first: dict[str, Candidate] = {}
        for name, candidates in self._candidates.items():
            if not candidates:
                return None
            wanted = next((c for c in first.values() if c[0] == candidates[0][0]), candidates[-1])
            if (name, wanted[1]) not in self._fastest:
                return None
            first[name] = (candidates[0][0], wanted[1], self._fastest[name, wanted[1]][0])
        state = State(first)
        return state if self._lie_side_by_side(state.shapes()) else None

    def moved(self, state: State, draw: random.Random) -> State | None:
        """Return a neighbour drawn uniformly over (stage, candidate); None if what follows it is impossible."""
        number = draw.randrange(self._ends[-1])
        place = bisect_right(self._ends, number)
        name = list(self._rows)[place]
        target = self._candidates[name][number - (self._ends[place - 1] if place else 0)]
        chosen = dict(state.chosen)
        chosen[name] = target
        for i, group in self._tied[name]:
            key = self._rows[name][target[1]][target[2]][6][i]
            for other in group.stages:
                if other != name:
                    place_of = target[:2] if group.same_mesh else chosen[other][:2]
                    follows = self._with_key(other, place_of[1], i, key)
                    if follows is None or place_of[0] not in self.template.home(other):
                        return None
                    chosen[other] = (*place_of, follows)
        for other, (node, m, _) in list(chosen.items()):
            if node == target[0] and m != target[1]:
                rows = self._fastest.get((other, target[1]))
                if not rows:
                    return None
                chosen[other] = (node, target[1], rows[0])
        result = State(chosen)
        return result if self._agrees(chosen) and self._lie_side_by_side(result.shapes()) else None

    def _with_key(self, name: str, m: int, tie: int, key: int) -> int | None:
        rows = self._rows[name].get(m, [])
        return next((row for row in self._fastest.get((name, m), []) if rows[row][6][tie] == key), None)

    def _agrees(self, chosen: Mapping[str, Candidate]) -> bool:
        for i, group in enumerate(self.problem.ties):
            keys = {self._rows[n][chosen[n][1]][chosen[n][2]][6][i] for n in group.stages}
            if len(keys) > 1 or (group.same_mesh and len({chosen[n][0] for n in group.stages}) > 1):
                return False
        return True

    def _lie_side_by_side(self, shapes: Mapping[int, int]) -> bool:
        return self._cut(shapes) is not None

    def _cut(self, shapes: Mapping[int, int]) -> bool | None:
        """Return whether the cluster is cut along GPUs; None if the meshes do not lie side by side."""
        cluster = self.problem.cluster
        used = [(g, self.problem.mesh_classes[m]) for g, m in shapes.items() if g]
        if any(shape.nodes > cluster.nodes or shape.gpus_per_node > cluster.gpus_per_node for _, shape in used):
            return None
        if any(shape == cluster and must_shrink(self.problem, self.template, g) for g, shape in used):
            return None
        if sum(shape.nodes for _, shape in used) <= cluster.nodes:
            return False
        return True if sum(shape.gpus_per_node for _, shape in used) <= cluster.gpus_per_node else None

    def fits(self, state: State) -> bool:
        """Whether device and host memory suffice."""
        device, host = self.problem.device_capacity, self.problem.host_capacity
        below: list[int] = []
        nodes = {node for node, _, _ in state.chosen.values()}
        for leaf in sorted(nodes):
            held, working, own_host = 0, 0, 0
            copies: dict[tuple[str, int, int], int] = {}
            for name, (node, m, row) in state.chosen.items():
                if node not in (0, leaf):
                    continue
                _, weights, resident, work, on_host, signature, _ = self._rows[name][m][row]
                held += resident
                working = max(working, work)
                own_host += on_host if node else 0
                owner = next((group[0] for group in self.problem.sharing if name in group), name)
                copies[owner, node, signature] = weights
            if held + working + sum(copies.values()) > device:
                return False
            below.append(own_host)
        root = sum(self._rows[n][m][r][4] for n, (node, m, r) in state.chosen.items() if node == 0)
        beside = sum(below) if self._cut(state.shapes()) else max(below)
        return root + beside <= host

    def makespan(self, state: State) -> int:
        """Return the length of one step under a list schedule."""
        return self._schedule(state)[1]

    def _times(self, state: State) -> dict[str, int]:
        times = {name: self._rows[name][m][row][0] for name, (_, m, row) in state.chosen.items()}
        for stage in self.problem.stages:
            if isinstance(stage, SyncStage):
                ends = [state.chosen[stage.source], state.chosen[stage.target]]
                i = stage.source_signatures.index(self._rows[stage.source][ends[0][1]][ends[0][2]][5])
                j = stage.target_signatures.index(self._rows[stage.target][ends[1][1]][ends[1][2]][5])
                matrix = stage.same if ends[0][0] == ends[1][0] else stage.across
                times[stage.name] = int(matrix[i, j])
            elif not isinstance(stage, GpuStage):
                times[stage.name] = stage.milliseconds
        return times

    def _schedule(self, state: State) -> tuple[dict[str, int], int]:
        """Start what is ready first, as soon as no stage that excludes it runs."""
        times = self._times(state)
        nodes = {name: node for name, (node, _, _) in state.chosen.items()}
        key = tuple(nodes.values())
        if key not in self._pairs:
            against: dict[str, list[str]] = {name: [] for name in self._order}
            for u, v in exclusions(self.problem, self.template, nodes):
                against[u].append(v)
                against[v].append(u)
            self._pairs[key] = against
        exclusive = self._pairs[key]
        ends: dict[str, int] = {}
        starts: dict[str, int] = {}
        waiting = list(self._order)
        while waiting:
            ready = [
                (max([ends[w] for w in self._waits[name]], default=0), place, name)
                for place, name in enumerate(waiting)
                if all(w in ends for w in self._waits[name])
            ]
            when, _, name = min(ready)
            starts[name] = max([when, *(ends[other] for other in exclusive[name] if other in ends)])
            ends[name] = starts[name] + times[name]
            waiting.remove(name)
        return starts, max(ends.values())

    def plan(self, state: State) -> tuple[Choice, Fraction]:
        """Return the plan of a state in the order of its list schedule, with its exact period."""
        starts, makespan = self._schedule(state)
        shapes = state.shapes()
        nodes = {name: node for name, (node, _, _) in state.chosen.items()}
        classes = (self._whole, *(shapes.get(g) for g in range(1, len(self.template.parents))))
        cuts = (bool(self._cut(shapes)), *(False for _ in self.template.parents[1:]))
        rows = {name: (m, row) for name, (_, m, row) in state.chosen.items()}
        return exact_choice(self.problem, self.template, Meshes(classes, cuts, nodes), rows, starts, makespan)


def _plain(stage: GpuStage, m: int) -> list[Row]:
    cell = stage.cells[m]
    columns = (cell.milliseconds, cell.weights, cell.resident, cell.working, cell.host, cell.signature)
    numbers = [column.tolist() for column in columns]
    return [(*row, tuple(ties)) for *row, ties in zip(*numbers, cell.ties.tolist(), strict=True)]
