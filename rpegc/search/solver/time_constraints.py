"""When stages run: the constraints on starts, durations and the period. Each function is one, its sentence on top.

Those marked *redundant* cut off no plan: they state what the others imply in a form that the solver can use early.
"""

from __future__ import annotations

from collections.abc import Callable

from rpegc.search.solver.expressions import Linear, total, within
from rpegc.search.solver.geometry import overlap
from rpegc.search.solver.problem import Edge
from rpegc.search.solver.variables import Data, Option, Variables


def durations_of_options(data: Data, v: Variables) -> None:
    """A stage takes the time, and completes its parts at the times, of its chosen option."""
    for stage, options in v.options.items():
        v.model.add(v.duration[stage] == total(options, lambda option: option.box.milliseconds))
        for j, part in enumerate(v.parts.get(stage, ())):
            v.model.add(part == total(options, _completion_of(j)))


def _completion_of(j: int) -> Callable[[Option], int]:
    """Return a function that reads when an option completes its j-th part."""
    return lambda option: option.box.completion[j]


def edges_in_time(data: Data, v: Variables) -> None:
    """A stage starts when what it needs is there: whole, or chunk by chunk as its source completes."""
    for edge in data.problem.edges:
        u, w = edge.source, edge.target
        for j in range(1, edge.chunks + 1):
            ready = edge.chunks * v.start[u] + _completed(data, v, edge, j)
            need = edge.chunks * (v.start[w] + edge.distance * v.period) + (j - 1) * v.duration[w]
            v.model.add(need >= ready)


def _completed(data: Data, v: Variables, edge: Edge, j: int) -> Linear:
    """Return chunks times the milliseconds until chunk j is complete; functions complete evenly."""
    if j == edge.chunks:
        return edge.chunks * v.duration[edge.source]
    if edge.source not in v.parts:
        return j * v.duration[edge.source]
    return edge.chunks * v.parts[edge.source][j * len(v.parts[edge.source]) // edge.chunks - 1]


def meshes_overlap(data: Data, v: Variables) -> None:
    """Two stages exclude each other if their meshes overlap; a sync occupies the meshes of both its ends."""
    nodes = range(len(data.template.parents))
    for (a, b), excludes in v.overlap.items():
        for first, second in ((a, b), (b, a)) if a in v.options and b in v.options else ():
            for g in data.homes_of(first):
                elsewhere = [v.on[second, h] for h in nodes if (second, h) in v.on and not overlap(data.template, g, h)]
                v.model.add_bool_or(excludes, *elsewhere, ~v.on[first, g])
    ends = {sync.name: (sync.source, sync.target) for sync in data.problem.syncs}
    for (a, b), excludes in v.overlap.items():
        for x in ends.get(a, (a,)) if a in ends or b in ends else ():
            for y in ends.get(b, (b,)):
                touching = v.overlap.get((x, y), v.overlap.get((y, x)))
                if touching is not None:
                    v.model.add_implication(touching, excludes)


def exclusion_with_winding(data: Data, v: Variables) -> None:
    """Stages that exclude each other run one after the other in every period, some k periods apart."""
    for (a, b), excludes in v.overlap.items():
        windings = data.timing.windings(a, b)
        chosen = dict.fromkeys(windings, excludes)
        if len(windings) > 1:
            chosen = {k: v.model.new_bool_var(f"winding[{a},{b},{k}]") for k in windings}
        v.model.add_bool_or(*chosen.values(), ~excludes)
        for k, literal in chosen.items():
            if not data.timing.follows(a, b, k):
                after = v.start[b] >= v.start[a] + v.duration[a] + k * v.period
                v.model.add(after).only_enforce_if(literal)
            if not data.timing.follows(b, a, -k - 1):
                before = v.start[a] + (k + 1) * v.period >= v.start[b] + v.duration[b]
                v.model.add(before).only_enforce_if(literal)


def no_stage_twice_at_once(data: Data, v: Variables) -> None:
    """A stage excludes itself: it ends before it starts again for the next step."""
    for duration in v.duration.values():
        v.model.add(duration <= v.period)


def load_of_every_leaf(data: Data, v: Variables) -> None:
    """Redundant: the stages and syncs that occupy one GPU take no more than a period together."""
    for leaf in data.template.leaves:
        path = data.template.path(leaf)
        load = [total(within(v.all_options(), path), lambda option: option.box.milliseconds)]
        for sync in data.problem.syncs:
            homes = [(end, node) for end in (sync.source, sync.target) for node in data.homes_of(end)]
            touching = [place for place in homes if place[1] in path]
            if any(all(node in path for node in data.homes_of(end)) for end in (sync.source, sync.target)):
                load.append(v.duration[sync.name])
            elif touching:
                occupied = v.model.new_int_var(0, data.cutoff + 1, f"occupied[{sync.name},{leaf}]")
                for place in touching:
                    v.model.add(occupied >= v.duration[sync.name]).only_enforce_if(v.on[place])
                load.append(occupied)
        v.model.add(sum(load) <= v.period)


def device_work(data: Data, v: Variables) -> None:
    """Redundant: GPU-milliseconds of all stages fit into the GPU-milliseconds of a period."""
    shapes = data.problem.mesh_classes
    work = total(v.all_options(), lambda option: shapes[option.mesh_class].gpus * option.box.milliseconds)
    v.model.add(work <= data.problem.cluster.gpus * v.period)
