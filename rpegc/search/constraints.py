"""The constraints of the integer program, one function each, its sentence above it.

`CONSTRAINTS` lists them in reading order: meshes, time, memory, syncs. Those marked *redundant* cut off no plan; they
state what the others imply in a form that the solver's linear relaxation can use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
from ortools.sat.python import cp_model

from rpegc.search.boxes import Box, sync_costs
from rpegc.search.geometry import interchangeable, must_shrink, overlap, subtree
from rpegc.search.problem import Edge, SyncStage
from rpegc.search.variables import Data, Literal, Option, Variables

Linear = cp_model.LinearExpr


def total(options: Iterable[Option], amount: Callable[[Option], int]) -> cp_model.LinearExprT:
    """Return the amount of the chosen options, as a linear expression."""
    pairs = [(option.chosen, amount(option)) for option in options]
    return Linear.weighted_sum([chosen for chosen, _ in pairs], [weight for _, weight in pairs])


# --- Meshes ---------------------------------------------------------------------------------------------------------


def one_option_a_stage(data: Data, v: Variables) -> None:
    """Every GPU stage takes exactly one box on exactly one tree node."""
    for stage, options in v.options.items():
        v.model.add_exactly_one([option.chosen for option in options])
        for node in data.homes_of(stage):
            here = [option.chosen for option in options if option.node == node]
            v.model.add_exactly_one([*here, ~v.on[stage, node]])


def options_follow_shapes(data: Data, v: Variables) -> None:
    """A stage takes a layout for a mesh class on a node only if the node has that class."""
    for options in v.options.values():
        groups: dict[tuple[int, int], list[Literal]] = defaultdict(list)
        for option in options:
            groups[option.node, option.mesh_class].append(option.chosen)
        for place, chosen in groups.items():
            v.model.add_at_most_one([*chosen, ~v.shape[place]])


def one_shape_a_mesh(data: Data, v: Variables) -> None:
    """Every tree node has at most one mesh class."""
    for node in range(1, len(data.template.parents)):
        v.model.add_at_most_one([v.shape[node, m] for m in data.classes_of(node)])


def meshes_fit(data: Data, v: Variables) -> None:
    """A mesh is no larger than its parent; siblings lie side by side, along nodes or along GPUs."""
    if data.fixed is not None:
        return
    shapes = data.problem.mesh_classes

    def nodes(g: int) -> cp_model.LinearExprT:
        return sum(shapes[m].nodes * v.shape[g, m] for m in data.classes_of(g))

    def width(g: int) -> cp_model.LinearExprT:
        return sum(shapes[m].gpus_per_node * v.shape[g, m] for m in data.classes_of(g))

    for parent in range(len(data.template.parents)):
        children = data.template.children(parent)
        for child in children:
            v.model.add(nodes(child) <= nodes(parent))
            v.model.add(width(child) <= width(parent))
        if len(children) > 1:
            v.model.add(sum(nodes(c) for c in children) <= nodes(parent)).only_enforce_if(~v.along_gpus[parent])
            v.model.add(sum(width(c) for c in children) <= width(parent)).only_enforce_if(v.along_gpus[parent])


def no_mesh_twice(data: Data, v: Variables) -> None:
    """A mesh has not the shape of its parent if its stages could sit on the parent as well."""
    for node in range(1, len(data.template.parents)):
        if data.fixed is None and must_shrink(data.problem, data.template, node):
            for m in data.classes_of(node):
                if (data.template.parents[node], m) in v.shape:
                    v.model.add_bool_or(~v.shape[node, m], ~v.shape[data.template.parents[node], m])


def meshes_are_used(data: Data, v: Variables) -> None:
    """A mesh with no stage on it or on its descendants has no shape."""
    for node in range(1, len(data.template.parents)):
        below = subtree(data.template, node)
        stages = [on for (_, home), on in v.on.items() if home in below]
        for m in data.classes_of(node) if data.fixed is None else ():
            v.model.add_bool_or(*stages, ~v.shape[node, m])


def siblings_in_order(data: Data, v: Variables) -> None:
    """Of interchangeable siblings the next one holds a stage only if the one before holds an earlier stage."""
    names = [stage.name for stage in data.problem.gpu_stages]
    for parent in range(len(data.template.parents) if data.fixed is None else 0):
        for left, right in pairwise(data.template.children(parent)):
            if not interchangeable(data.problem, data.template, left, right):
                continue
            before: list[Literal] = []
            for name in names:
                for node in subtree(data.template, right):
                    if (name, node) in v.on:
                        v.model.add_bool_or(*before, ~v.on[name, node])
                before.extend(v.on[name, n] for n in subtree(data.template, left) if (name, n) in v.on)


def ties_agree(data: Data, v: Variables) -> None:
    """Stages of a tie group take rows with the same key (boxes: with keys in common), and sit on one mesh if asked."""
    for index, group in enumerate(data.problem.ties):
        for a, b in pairwise(group.stages):
            for first, second in ((a, b), (b, a)):
                for option in v.options[first]:
                    keys = option.box.ties[index]
                    agreeing = [o.chosen for o in v.options[second] if _meet(keys, o.box.ties[index])]
                    v.model.add_bool_or(*agreeing, ~option.chosen)
            for node in range(len(data.template.parents)) if group.same_mesh else ():
                v.model.add(v.on.get((a, node), 0) == v.on.get((b, node), 0))


def _meet(a: np.ndarray, b: np.ndarray) -> bool:
    return len(np.intersect1d(a, b, assume_unique=True)) > 0


# --- Time -----------------------------------------------------------------------------------------------------------


def durations_of_options(data: Data, v: Variables) -> None:
    """A stage takes the time, and completes its parts at the times, of its chosen option."""
    for stage, options in v.options.items():
        v.model.add(v.duration[stage] == total(options, lambda option: option.box.milliseconds))
        for j, part in enumerate(v.parts.get(stage, ())):
            v.model.add(part == total(options, lambda option, j=j: option.box.completion[j]))


def edges_in_time(data: Data, v: Variables) -> None:
    """A stage starts when what it needs is there: whole, or chunk by chunk as its source completes."""
    for edge in data.problem.edges:
        u, w = edge.source, edge.target
        for j in range(1, edge.chunks + 1):
            ready = edge.chunks * v.start[u] + _completed(data, v, edge, j)
            need = edge.chunks * (v.start[w] + edge.distance * v.period) + (j - 1) * v.duration[w]
            v.model.add(need >= ready)


def _completed(data: Data, v: Variables, edge: Edge, j: int) -> cp_model.LinearExprT:
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


def load_of_every_leaf(data: Data, v: Variables) -> None:
    """Redundant: the stages and syncs that occupy one GPU take no more than a period together."""
    for leaf in data.template.leaves:
        path = data.template.path(leaf)
        load = [total(_within(v.all_options(), path), lambda option: option.box.milliseconds)]
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


# --- Memory ---------------------------------------------------------------------------------------------------------


def device_memory(data: Data, v: Variables) -> None:
    """While any stage runs, a GPU holds what all stages on its meshes keep there, plus that stage's working set."""
    saved = shared_weights(data, v)
    for leaf in data.template.leaves:
        path = data.template.path(leaf)
        here = {stage: _within(options, path) for stage, options in v.options.items()}
        held = [total(options, lambda option: option.box.held) for options in here.values()]
        kept = sum(held) - sum(saved[leaf])
        for options in here.values():
            if options:
                working = total(options, lambda option: option.box.peak - option.box.held)
                v.model.add(kept + working + v.headroom <= data.problem.device_capacity)


def shared_weights(data: Data, v: Variables) -> dict[int, list[cp_model.IntVar]]:
    """A stage saves its weights where an earlier stage of its group, on its mesh, has the same signature.

    Returns, for each leaf, the units that later stages need not hold again.
    """
    saved: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    for group in data.problem.sharing:
        for position, later in enumerate(group):
            shares = [_shares(data, v, earlier, later) for earlier in group[:position]]
            partners = [literal for literal in shares if literal is not None]
            most = max((option.box.weights for option in v.options[later]), default=0)
            if not partners or not most:
                continue
            for leaf in data.template.leaves:
                units = v.model.new_int_var(0, most, f"saved[{later},{leaf}]")
                here = _within(v.options[later], data.template.path(leaf))
                v.model.add(units <= total(here, lambda option: option.box.weights))
                v.model.add(units <= sum(most * literal for literal in partners))
                saved[leaf].append(units)
    return saved


def _shares(data: Data, v: Variables, earlier: str, later: str) -> Literal | None:
    """Return a literal that may be 1 only if both stages sit on one mesh with a signature in common."""
    matches: list[tuple[Option, list[Literal]]] = []
    for option in v.options[earlier]:
        place = (option.node, option.mesh_class)
        there = [other for other in v.options[later] if (other.node, other.mesh_class) == place]
        matches.append((option, [o.chosen for o in there if _meet(option.box.signatures, o.box.signatures)]))
    if not any(equal for _, equal in matches):
        return None
    share = v.model.new_bool_var(f"share[{earlier},{later}]")
    for option, equal in matches:
        v.model.add_bool_or(*equal, ~option.chosen, ~share)
    return share


def host_memory(data: Data, v: Variables) -> None:
    """A node's host memory holds what all stages on it keep there; meshes cut along GPUs share their nodes."""
    worst = sum(max((o.box.host for o in options), default=0) for options in v.options.values())
    if worst <= data.problem.host_capacity:
        return
    load: dict[int, cp_model.LinearExprT] = {}
    for node in reversed(range(len(data.template.parents))):
        own = total(_within(v.all_options(), (node,)), lambda option: option.box.host)
        children = data.template.children(node)
        load[node] = v.model.new_int_var(0, data.problem.host_capacity, f"host[{node}]")
        v.model.add(load[node] >= own)
        for child in children:
            v.model.add(load[node] >= own + load[child])
        if len(children) > 1:
            together = load[node] >= own + sum(load[child] for child in children)
            v.model.add(together).only_enforce_if(v.along_gpus[node])


def _within(options: list[Option], nodes: tuple[int, ...]) -> list[Option]:
    return [option for option in options if option.node in nodes]


# --- Syncs ----------------------------------------------------------------------------------------------------------


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
            v.model.add(duration >= Linear.weighted_sum(chosen, least.tolist()))
        others = [option.chosen for option in target]
        for row, members in _equal_rows(cost):
            if row.min() == row.max():
                continue
            literal = source[members[0]].chosen
            if len(members) > 1:
                literal = v.model.new_bool_var(f"costs[{sync.name},{members[0]}]")
                v.model.add_exactly_one([*(source[index].chosen for index in members), ~literal])
            v.model.add(duration >= Linear.weighted_sum(others, row.tolist())).only_enforce_if(literal)


def _pair_costs(data: Data, v: Variables, sync: SyncStage) -> np.ndarray:
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


def _equal_rows(matrix: np.ndarray) -> list[tuple[np.ndarray, list[int]]]:
    """Group the equal rows of a matrix, in order of first appearance."""
    groups: dict[bytes, list[int]] = {}
    for index, row in enumerate(np.ascontiguousarray(matrix)):
        groups.setdefault(row.tobytes(), []).append(index)
    return [(matrix[members[0]], members) for members in groups.values()]


CONSTRAINTS = (
    one_option_a_stage,
    options_follow_shapes,
    one_shape_a_mesh,
    meshes_fit,
    no_mesh_twice,
    meshes_are_used,
    siblings_in_order,
    ties_agree,
    durations_of_options,
    edges_in_time,
    meshes_overlap,
    exclusion_with_winding,
    load_of_every_leaf,
    device_work,
    device_memory,
    host_memory,
    syncs_take_their_time,
)
