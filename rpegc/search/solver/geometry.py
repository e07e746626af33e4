"""The mesh tree: which nodes overlap, which siblings are interchangeable, where a chosen mesh lies in the cluster."""

from __future__ import annotations

from rpegc.search.solver.problem import Choice, Problem, Template
from rpegc.target import Mesh


def overlap(template: Template, g: int, h: int) -> bool:
    """Whether two tree nodes share GPUs: one is the other or an ancestor of it."""
    return g in template.path(h) or h in template.path(g)


def subtree(template: Template, node: int) -> tuple[int, ...]:
    """Return the node and all its descendants, in ascending order."""
    return tuple(g for g in range(len(template.parents)) if node in template.path(g))


def must_shrink(problem: Problem, template: Template, node: int) -> bool:
    """Whether a node may not have its parent's shape: every stage that may sit on it may sit on the parent."""
    parent = template.parents[node]
    homes = [template.home(stage.name) for stage in problem.gpu_stages]
    return all(parent in home for home in homes if node in home)


def interchangeable(problem: Problem, template: Template, left: int, right: int) -> bool:
    """Whether swapping the subtrees of two siblings maps the template to itself, homes included."""
    left_nodes, right_nodes = subtree(template, left), subtree(template, right)
    if len(left_nodes) != len(right_nodes):
        return False
    swap = dict(zip(left_nodes + right_nodes, right_nodes + left_nodes, strict=True))
    same_shape = all(swap.get(template.parents[g], template.parents[g]) == template.parents[swap[g]] for g in swap)
    homes = [set(template.home(stage.name)) for stage in problem.gpu_stages]
    return same_shape and all({swap.get(g, g) for g in home} == home for home in homes)


def rectangles(problem: Problem, choice: Choice) -> tuple[Mesh | None, ...]:
    """Return where each tree node of a plan lies: children side by side from the parent's first node (or GPU) on.

    Names are "cluster" for node 0 and "mesh1", "mesh2", ... for the others; None where a node is unused.
    """
    meshes: list[Mesh | None] = [Mesh("cluster", 0, problem.cluster.nodes, 0, problem.cluster.gpus_per_node)]
    used_nodes = [0] * len(choice.mesh_classes)
    used_gpus = [0] * len(choice.mesh_classes)
    for node, index in enumerate(choice.mesh_classes):
        if node == 0:
            continue
        parent = choice.template.parents[node]
        outer = meshes[parent]
        if index is None or outer is None:
            meshes.append(None)
            continue
        shape = problem.mesh_classes[index]
        first_node, first_gpu = outer.first_node, outer.first_gpu
        if choice.along_gpus[parent]:
            first_gpu += used_gpus[parent]
            used_gpus[parent] += shape.gpus_per_node
        else:
            first_node += used_nodes[parent]
            used_nodes[parent] += shape.nodes
        meshes.append(Mesh(f"mesh{node}", first_node, shape.nodes, first_gpu, shape.gpus_per_node))
    return tuple(meshes)
