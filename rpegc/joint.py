"""What a compilation can do around its search: without the target's limits, over knobs, and why nothing fits."""

from __future__ import annotations

from dataclasses import replace

import passes
from backends.unrestricted import capabilities as free_capabilities
from rpegc import knobs
from rpegc.compiler import Progress, Setting, bound_plan, search, setting_of, solver_of, structures, variant_of
from rpegc.errors import InputError, NothingFits
from rpegc.plan import Plan, Unrestricted
from rpegc.search.assemble import knobs_of_graph
from rpegc.search.choose import choose
from rpegc.search.conflict import smallest_conflict
from rpegc.search.solver.problem import Limit
from rpegc.search.tabulate import TableCache


def unrestricted(setting: Setting) -> Setting:
    """Return the setting without the target's limits: every structure, placement and layout that rpegc knows.

    Prices are those of the native engine.
    """
    names = frozenset(rewrite.name for rewrite in passes.default_passes())
    free = free_capabilities(names)
    work = replace(setting.work, framework=free.name, engine_class=free.engine_class)
    return replace(setting, context=replace(setting.context, capabilities=free), work=work, free=True)


def without_limits(setting: Setting, plan: Plan, progress: Progress) -> Unrestricted | None:
    """Return what the best plan without the target's limits would gain; None if that search was interrupted."""
    progress("searching without the target's limits")
    free = unrestricted(setting)
    outcome = search(free, structures(free), progress)
    if outcome.winner is None or outcome.winner.solution.period is None or not outcome.winner.cost:
        return None
    period_s = float(outcome.winner.solution.period) / 1000.0
    bound_s = period_s * min(1.0, outcome.bound_cost / outcome.winner.cost)
    names = tuple(rewrite.name for rewrite in outcome.winner.variant.graph.rewrites)
    return Unrestricted(period_s, bound_s, 1.0 - period_s / plan.period_s, names)


def tuned(setting: Setting, plan: Plan, progress: Progress) -> Plan:
    """Return the plan with the best knobs that a few trials find: solved at each, judged by simulation."""
    cache, able = TableCache(), setting.context.capabilities.structures
    low, high = 0, setting.context.allow.max_staleness if "bounded-asynchrony" in able else 0
    domain: dict[str, tuple[int | float, ...]] = {
        "chunks": knobs.CHUNKS if "stream-rollout" in able else (1,),
        "tail_share": knobs.TAIL_SHARES if "split-tail" in able else (0.0,),
        "staleness": tuple(range(low, high + 1)),
    }

    def evaluate(wanted: knobs.Knobs) -> Plan | None:
        progress(f"knobs: {wanted.chunks} chunks, tail {wanted.tail_share:g}, staleness {wanted.staleness}")
        graphs = structures(setting, passes.with_knobs(wanted.chunks, wanted.tail_share))
        chosen = [graph for graph in graphs if knobs.knobs_in(knobs_of_graph(graph)) == wanted]
        variants = tuple(variant_of(setting, graph, cache) for graph in chosen)
        limit = Limit(tolerance=setting.options.tolerance, seed=setting.options.seed, follow_up_time=0.0)
        outcome = choose(variants, limit, solver_of(setting), 0.0, setting.pipeline.spec.objective)
        return None if outcome.winner is None else bound_plan(setting, outcome)

    def acceptable(other: Plan) -> bool:
        classes = {rewrite.semantics for rewrite in other.rewrites} - {rewrite.semantics for rewrite in plan.rewrites}
        gain = 0.0 if classes <= {"exact"} else setting.context.allow.minimum_gain
        return _simulated(other) <= (1.0 - gain) * _simulated(plan)

    options = setting.options
    return knobs.tune(plan, evaluate, domain, options.trials, options.seed, options.storage, acceptable).plan


def _simulated(plan: Plan) -> float:
    return plan.simulated_period_s or plan.period_s


def conflict(setting: Setting) -> tuple[str, ...]:
    """Return the fewest of the user's fixed fields that no plan satisfies together; () if they are not to blame."""
    fixed = setting.pipeline.spec.fix
    entries = [(stage, field) for stage, fields in fixed.items() for field in fields]
    if not entries:
        return ()

    def holds(kept: tuple[tuple[str, str], ...]) -> bool:
        fix = {stage: {f: v for f, v in fields.items() if (stage, f) in kept} for stage, fields in fixed.items()}
        pipeline = replace(setting.pipeline, spec=setting.pipeline.spec.model_copy(update={"fix": fix}))
        options = replace(setting.options, space="quick", tolerance=0.9, checkpoint=None)
        try:
            attempt = setting_of(pipeline, options)
            return search(attempt, structures(attempt)[:1]).winner is not None
        except (InputError, NothingFits):
            return False

    found = smallest_conflict(entries, holds)
    return tuple(f"fix.{stage}.{field}: {fixed[stage][field]}" for stage, field in found)
