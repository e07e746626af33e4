"""Where stages sit: the constraints on meshes, options and ties. Each function is one, its sentence on top."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from rpegc.search.solver.expressions import Linear
from rpegc.search.solver.geometry import interchangeable, must_shrink, subtree
from rpegc.search.solver.variables import Data, Literal, Variables


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
    """A mesh is no larger than its parent, and siblings lie side by side, along nodes or along GPUs."""
    if data.fixed is not None:
        return
    shapes, cluster = data.problem.mesh_classes, data.problem.cluster

    def nodes(g: int) -> Linear:
        shaped: list[Linear] = [shapes[m].nodes * v.shape[g, m] for m in data.classes_of(g)]
        return cluster.nodes if g == 0 else sum(shaped)

    def width(g: int) -> Linear:
        shaped: list[Linear] = [shapes[m].gpus_per_node * v.shape[g, m] for m in data.classes_of(g)]
        return cluster.gpus_per_node if g == 0 else sum(shaped)

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
                    agreeing = [o.chosen for o in v.options[second] if not keys.isdisjoint(o.box.ties[index])]
                    v.model.add_bool_or(*agreeing, ~option.chosen)
            for node in range(len(data.template.parents)) if group.same_mesh else ():
                v.model.add(v.on.get((a, node), 0) == v.on.get((b, node), 0))
