"""The baseline of HybridFlow's auto-mapping (arXiv 2409.19256): partitions of the models into colocated sets.

Every way to put the stages on disjoint meshes of the tree, every split of the cluster among these, and each stage with
its fastest layouts that fit there, one stage of a step after the other. Layouts are chosen stage by stage, never
jointly with the move of weights between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from rpegc.search.solver import greedy
from rpegc.search.solver.geometry import must_shrink
from rpegc.search.solver.problem import GpuStage, Limit, Problem, Solution, Stage, Status, Template

MOST_PARTITIONS = 2_000
"""Assignments of stages to meshes that are tried, in order: Bell numbers grow fast."""


def solve(problem: Problem, limit: Limit, cutoff: int | None = None) -> Solution:
    """Return the best plan over the partitions; proves nothing (`bound` 0)."""
    best = Solution(None, None, 0, Status.LIMIT, ("period",))
    for template in _partitions(problem):
        narrowed = replace(problem, ladder=(template,), stages=_shrunk(problem, template))
        found = greedy.solve(narrowed, limit, best.period_ms or cutoff)
        if found.period is not None and found.choice is not None:
            # The tree is the problem's own: only the homes were narrowed to those of this partition.
            best = replace(found, choice=replace(found.choice, template=problem.ladder[-1]))
    return best


def _shrunk(problem: Problem, template: Template) -> tuple[Stage, ...]:
    """Take the cluster's shape from stages on a mesh that may not have it: narrowed homes no longer show that."""
    whole = next((m for m, shape in enumerate(problem.mesh_classes) if shape == problem.cluster), -1)
    stages: list[Stage] = []
    for stage in problem.stages:
        home = template.homes.get(stage.name, (0,))[0]
        if isinstance(stage, GpuStage) and home and must_shrink(problem, problem.ladder[-1], home):
            stage = GpuStage(stage.name, {m: cell for m, cell in stage.cells.items() if m != whole})
        stages.append(stage)
    return tuple(stages)


def _partitions(problem: Problem) -> Iterator[Template]:
    """Yield the tree with one home a stage, tied stages together; each choice of homes once."""
    tree = problem.ladder[-1]
    flat = [g for g in range(len(tree.parents)) if tree.parents[g] == 0]
    homes = [[g for g in tree.home(stage.name) if g in flat] for stage in problem.gpu_stages]
    names = [stage.name for stage in problem.gpu_stages]
    tried = 0
    for picked in product(*homes):
        nodes = dict(zip(names, picked, strict=True))
        together = all(len({nodes[n] for n in group.stages}) == 1 for group in problem.ties if group.same_mesh)
        if together and tried < MOST_PARTITIONS:
            tried += 1
            yield Template(tree.parents, {name: (node,) for name, node in nodes.items()})
