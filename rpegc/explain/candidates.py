"""Good plans that differ: the best of each structure, and the best without the chosen degrees of the longest stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from rpegc.compiler import bound_plan, decide, structures, variants_of
from rpegc.difference import difference
from rpegc.ir.fusion import unit_of
from rpegc.plan import Plan
from rpegc.search.choose import Variant
from rpegc.search.solver.problem import Cell, GpuStage
from rpegc.search.tabulate import TableCache, Tables
from rpegc.setting import Setting

Progress = Callable[[str], None]
DEGREES = ("tp", "pp", "cp", "ulysses", "ep", "engine_dp")
"""Fields that make two layouts different plans, rather than the same plan with another batch."""
VARIED_STAGES = 2
"""Longest stages whose degrees are varied."""


def candidates(setting: Setting, plan: Plan, progress: Progress = lambda _: None) -> tuple[Plan, ...]:
    """Return plans beside a chosen one that the pipeline allows, the fastest first; none is the chosen one."""
    found: list[Plan] = []
    best_exact = plan.period_s if _exact(plan) else None
    for variant in _edited(setting, plan, progress):
        outcome = decide(setting, (variant,))
        if outcome.interrupted:
            raise KeyboardInterrupt
        if outcome.winner is None:
            continue
        other = bound_plan(setting, outcome)
        gain = setting.context.allow.minimum_gain
        allowed = _exact(other) or best_exact is None or other.period_s <= (1 - gain) * best_exact
        if allowed and all(difference(known, other).decisions for known in (plan, *found)):
            found.append(other)
    return tuple(sorted(found, key=lambda other: (other.objective.value, other.period_s)))


def most_different(plan: Plan, others: tuple[Plan, ...], count: int, slower: float = 0.25) -> tuple[Plan, ...]:
    """Return the plan and up to `count - 1` others, each as unlike those before as can be.

    Only plans on as many nodes, and at most by the share `slower` behind, are good enough to spend machine time on.
    """
    chosen = [plan]
    left = [p for p in others if p.devices.nodes == plan.devices.nodes and p.period_s <= (1 + slower) * plan.period_s]
    while left and len(chosen) < count:
        distance = [min(len(difference(one, other).decisions) for one in chosen) for other in left]
        chosen.append(left.pop(int(np.argmax(distance))))
    return tuple(chosen)


def _edited(setting: Setting, plan: Plan, progress: Progress) -> Iterator[Variant]:
    """Yield every structure, then the chosen plan's structure without its degrees, one long stage at a time."""
    progress("pricing alternatives")
    variants = variants_of(setting, structures(setting), TableCache())
    for number, variant in enumerate(variants):
        progress(f"alternatives: structure {number + 1} of {len(variants)}")
        yield variant
    same = [v for v in variants if v.graph == plan.graph]
    long = sorted((s for s in plan.stages if s.layout is not None), key=lambda s: -s.seconds)[:VARIED_STAGES]
    for variant in same[:1]:
        for stage in long:
            progress(f"alternatives: other degrees of {stage.name}")
            degrees = {name: getattr(stage.layout, name) for name in DEGREES if hasattr(stage.layout, name)}
            yield _without(variant, stage.name, degrees)


def _without(variant: Variant, name: str, degrees: Mapping[str, int]) -> Variant:
    """Return the variant without the rows of a stage that have these degrees."""
    unit = unit_of(variant.graph.stage(name))
    stages = []
    for stage in variant.problem.stages:
        if isinstance(stage, GpuStage) and stage.name == unit:
            cells = {m: _other_rows(cell, variant.tables, name, m, degrees) for m, cell in stage.cells.items()}
            stage = GpuStage(unit, {m: cell for m, cell in cells.items() if cell.rows})
        stages.append(stage)
    return replace(variant, problem=replace(variant.problem, stages=tuple(stages)))


def _other_rows(cell: Cell, tables: Tables, name: str, m: int, degrees: Mapping[str, int]) -> Cell:
    layouts = tables.cells[name][tables.meshes[m]].layouts
    same = np.ones(cell.rows, dtype=bool)
    for field, value in degrees.items():
        same &= np.asarray(layouts[field])[cell.layout] == value
    return cell.take(np.flatnonzero(~same))


def _exact(plan: Plan) -> bool:
    return all(rewrite.semantics == "exact" for rewrite in plan.rewrites)
