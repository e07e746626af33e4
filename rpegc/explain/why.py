"""Why a plan takes the time that it takes: the cycle that forces the period, the next one, loads, work and depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations, product

from rpegc.cost.work import StageWork, stage_works
from rpegc.cost.work_depth import stage_depth, stage_work_flops
from rpegc.explain.guidelines import guidelines
from rpegc.frontend.load import restore_pipeline
from rpegc.ir.fusion import contracted, units
from rpegc.ir.graph import Op
from rpegc.ir.period import PeriodResult, evaluate
from rpegc.plan import Plan, PlannedStage
from rpegc.reasons import Bottleneck, Explanation, Load, Share, StageWorkDepth
from rpegc.setting import Options, setting_of
from rpegc.target import Mesh

FASTER = Fraction(9, 10)
"""A stage's lever is measured by letting it take this share of its time."""


def explain(plan: Plan) -> Explanation:
    """Return why a plan takes its time, from the plan alone. Raises InputError if its starts contradict its graph."""
    schedule = _Schedule(plan)
    works = works_of(plan)
    return Explanation(
        name=plan.name,
        period_s=plan.period_s,
        lower_bound_s=plan.lower_bound_s,
        bottleneck=schedule.bottleneck(),
        loads=tuple(_load(plan, mesh) for mesh in plan.meshes),
        shares=schedule.shares(),
        work_depth=tuple(_work_depth(plan, name, work) for name, work in works.items()),
        guidelines=guidelines(plan, works),
    )


def works_of(plan: Plan) -> dict[str, StageWork]:
    """Return the work of each stage of a plan."""
    setting = setting_of(restore_pipeline(plan.pipeline), Options(space=plan.search.space, seed=plan.seed))
    return dict(stage_works(plan.graph, setting.of_engine(plan.graph.engine).work))


class _Schedule:
    """A plan's cyclic order, whose period can be evaluated again at other stage times. Whole milliseconds."""

    def __init__(self, plan: Plan) -> None:
        self._graph = contracted(plan.graph)
        self._units = unit_stages(plan)
        self._times = {name: _milliseconds(stage.seconds) for name, stage in self._units.items()}
        self._windings = windings_of(plan)

    def at(self, changes: Mapping[str, Fraction]) -> PeriodResult:
        """Return the period with the times of some stages multiplied, in the planned order."""
        times = {name: time * changes.get(name, Fraction(1)) for name, time in self._times.items()}
        curves = {
            name: [_milliseconds(done) * changes.get(name, Fraction(1)) for done in stage.completion]
            for name, stage in self._units.items()
            if stage.completion
        }
        result = evaluate(self._graph, times, self._windings, curves)
        assert result is not None, "the order of a plan is feasible at any stage times"
        return result

    def bottleneck(self) -> Bottleneck:
        """Return the cycle that forces the period, and the one that would if its largest stage took no time."""
        now = self.at({})
        cycle = tuple(dict.fromkeys(now.critical))
        largest = max(cycle, key=lambda name: (self._times[name], name))
        after = self.at({largest: Fraction(0)})
        next_cycle = tuple(dict.fromkeys(name for name in after.critical if name != largest))
        return Bottleneck(cycle, float(now.period) / 1000.0, largest, next_cycle, float(after.period) / 1000.0)

    def shares(self) -> tuple[Share, ...]:
        """Return each stage's seconds and lever, the largest lever first."""
        now = self.at({})
        rows = []
        for name, time in self._times.items():
            lever = 0.0
            if now.period:
                lever = float((now.period - self.at({name: FASTER}).period) / now.period / (1 - FASTER))
            rows.append(Share(name, float(time) / 1000.0, name in now.critical, lever))
        return tuple(sorted(rows, key=lambda row: (-row.lever, -row.seconds, row.stage)))


def _milliseconds(seconds: float) -> Fraction:
    return Fraction(math.ceil(seconds * 1000.0 - 1e-6))


def unit_stages(plan: Plan) -> dict[str, PlannedStage]:
    """Return a stage for each unit of time: stages that run fused share start and seconds."""
    return {name: plan.stage(members[0].name) for name, members in units(plan.graph).items()}


def windings_of(plan: Plan) -> dict[tuple[str, str], int]:
    """Return the order of each pair of units that exclude each other: v of step i runs after u of step i + k."""
    period_ms = max(1, math.ceil(round(plan.period_s * 1000.0, 6)))
    orders = {}
    for (u, first), (v, second) in combinations(unit_stages(plan).items(), 2):
        pairs = product(occupied(plan, first.name), occupied(plan, second.name))
        if first.seconds and second.seconds and any(a.overlaps(b) for a, b in pairs):
            orders[u, v] = (round(second.start_s * 1000.0) - round(first.start_s * 1000.0)) // period_ms
    return orders


def occupied(plan: Plan, name: str) -> tuple[Mesh, ...]:
    """Return the meshes that a stage occupies: its own; both ends' of a sync; none of a function."""
    stage = plan.stage(name)
    if stage.mesh:
        return (plan.mesh(stage.mesh),)
    if stage.op != Op.SYNC:
        return ()
    ends = [edge.source for edge in plan.graph.into(name)] + [edge.target for edge in plan.graph.out_of(name)]
    meshes = dict.fromkeys(plan.stage(end).mesh for end in ends)
    return tuple(plan.mesh(mesh) for mesh in meshes if mesh)


def _load(plan: Plan, mesh: Mesh) -> Load:
    here = [
        s
        for s in unit_stages(plan).values()
        if any(mesh.overlaps(other) for other in occupied(plan, s.name)) and s.seconds
    ]
    busy = sum(stage.seconds for stage in here)
    return Load(mesh.name, mesh.gpus, busy, busy / plan.period_s, tuple(stage.name for stage in here))


def _work_depth(plan: Plan, name: str, work: StageWork) -> StageWorkDepth:
    stage = plan.stage(name)
    flop = stage_work_flops(work)
    rate = flop / (stage.seconds * plan.mesh(stage.mesh).gpus) if stage.mesh and stage.seconds else None
    return StageWorkDepth(name, flop, stage_depth(work), rate)
