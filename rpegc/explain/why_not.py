"""Why not another plan: the best one under a condition with the difference term by term, or what forbids it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from passes.place import misfits
from rpegc.compiler import bound_plan, decide, structures, variants_of
from rpegc.cost.work import stage_works
from rpegc.difference import difference
from rpegc.errors import InputError, NothingFits
from rpegc.explain.condition import Condition, parse_condition
from rpegc.frontend.expand import expand
from rpegc.frontend.load import restore_pipeline
from rpegc.ir.fusion import unit_names
from rpegc.ir.graph import Graph
from rpegc.plan import Plan
from rpegc.reasons import Verdict
from rpegc.search.choose import Outcome, Variant
from rpegc.search.diagnose import find_overflow, why_refused
from rpegc.search.enumerate import legal_layouts
from rpegc.search.solver.problem import GpuStage, Limit, Problem
from rpegc.search.tabulate import TableCache
from rpegc.setting import Options, Setting, setting_of
from rpegc.units import format_seconds

Progress = Callable[[str], None]
UNLIMITED_UNITS = 1 << 40
"""Memory units (each of many MiB) that no plan fills."""


@dataclass(frozen=True, slots=True)
class Found:
    """The structures that a condition leaves, their setting, and whether more is allowed there than the user allows."""

    setting: Setting
    graphs: tuple[Graph, ...]
    wide: bool = False


def why_not(plan: Plan, text: str, options: Options, progress: Progress = lambda _: None) -> Verdict:
    """Return the best plan under a condition beside the given plan, or what forbids it.

    Raises InputError if the condition itself makes no sense.
    """
    pipeline = restore_pipeline(plan.pipeline)
    condition = parse_condition(text, pipeline)
    found: Found | None = None
    try:
        found = _structures(plan, condition, options)
        if not found.graphs:
            return Verdict(text, "capability", _no_structure(found.setting, condition))
        progress("pricing")
        variants = _sized(variants_of(found.setting, found.graphs, TableCache()), condition)
        progress("searching")
        outcome = decide(found.setting, variants)
    except InputError as problem:
        hint = f" ({problem.hint})" if problem.hint else ""
        field_rule = _field_rule(found, condition) if found is not None else ""
        return Verdict(text, "rule", field_rule or problem.message + hint)
    except NothingFits as problem:
        return Verdict(text, "memory", f"{problem.message}: {problem.term}")
    if outcome.winner is None:
        if outcome.interrupted:
            raise KeyboardInterrupt
        return _refused(text, found.setting, variants)
    return _beside(plan, condition, found, outcome)


def _structures(plan: Plan, condition: Condition, options: Options) -> Found:
    """Return the structures that meet the condition; with more allowed than the user allows where none does."""
    for wide in (False, True):
        setting = setting_of(restore_pipeline(condition.pipeline(plan.pipeline, wide)), options)
        graphs = tuple(graph for graph in structures(setting) if condition.keeps(graph))
        if graphs or condition.widened is None:
            break
    return Found(setting, graphs, bool(graphs) and wide)


def _field_rule(found: Found, condition: Condition) -> str:
    """Return the rule on the given layout field that leaves a stage without a layout on its largest mesh, or ""."""
    for graph in found.graphs:
        setting = found.setting.of_engine(graph.engine)
        facts = setting.facts(graph, stage_works(graph, setting.work))
        for name in (name for name in condition.fixes if graph.has(name)):
            stage = graph.stage(name)
            rules = setting.context.capabilities.rules_for(stage.op.value, stage.model)
            if all(not len(legal_layouts(stage, mesh, facts[name], rules)["tp"]) for mesh in setting.meshes):
                reason = why_refused(stage, setting.meshes[-1], facts[name], rules, condition.field)
                if reason:
                    return f"{name}: {reason}"
    return ""


def _no_structure(setting: Setting, condition: Condition) -> str:
    """Say what the target lacks: the placement's own reasons where the condition names one, else what it knows."""
    target = f"{setting.backend.name} {setting.backend.version}"
    key, value = (part.strip() for part in condition.text.split("=", 1))
    patterns = setting.context.capabilities.placements
    known = [pattern.name for pattern in patterns]
    for pattern in patterns:
        if value in (pattern.name, pattern.mode) and key in ("placement", "mode"):
            reasons = "; ".join(misfits(expand(setting.pipeline), pattern)) or "a rewrite it requires is not possible"
            return f"{target} cannot run this pipeline like that: {reasons} [{pattern.source}]"
    if key == "placement":
        return f"{target} has no placement `{value}`; it knows {', '.join(known)}"
    if key == "mode":
        modes = dict.fromkeys(pattern.mode for pattern in patterns if pattern.mode)
        return f"{target} has no mode `{value}`; it knows {', '.join(modes) or 'one only'}"
    if key == "engine":
        engines = [engine.engine for engine in setting.engines if engine.engine]
        return f"{target} has no training engine `{value}`; it knows {', '.join(engines) or 'one only'}"
    if key == "staleness":
        ranges = [f"{p.name} {p.weight_distance[0] - 1} to {p.weight_distance[1] - 1}" for p in patterns]
        return f"{target} supports no staleness of {value} for this pipeline: by placement {', '.join(ranges)}"
    name = key.removeprefix("pass.")
    if value == "off":
        return f"every structure of this pipeline on {target} rests on {name}"
    if name not in setting.context.capabilities.structures:
        able = ", ".join(sorted(setting.context.capabilities.structures)) or "none"
        return f"{target} cannot express {name}, or it has no place in this pipeline; the target expresses {able}"
    return f"{name} has no place in this pipeline: its law does not hold"


def _sized(variants: tuple[Variant, ...], condition: Condition) -> tuple[Variant, ...]:
    """Return the variants with stages kept to meshes of a given size. Raises InputError if there is no such mesh."""
    if condition.sizes is None:
        return variants
    kept = []
    for variant in variants:
        unit = unit_names(variant.graph)
        sizes = {unit[name]: size for name, size in condition.sizes.items() if name in unit}
        problem = _with_sizes(variant.problem, sizes)
        kept += [replace(variant, problem=problem)] if problem is not None else []
    if not kept:
        classes = ", ".join(str(mesh) for mesh in variants[0].problem.mesh_classes)
        raise InputError(f"{condition.text}: no stage has a layout on such a mesh; the space has {classes}")
    return tuple(kept)


def _with_sizes(problem: Problem, sizes: Mapping[str, tuple[str, int]]) -> Problem | None:
    stages = []
    for stage in problem.stages:
        if isinstance(stage, GpuStage) and stage.name in sizes:
            what, count = sizes[stage.name]
            cells = {m: c for m, c in stage.cells.items() if getattr(problem.mesh_classes[m], what) == count}
            if not cells:
                return None
            stage = GpuStage(stage.name, cells)
        stages.append(stage)
    return replace(problem, stages=tuple(stages))


def _refused(text: str, setting: Setting, variants: tuple[Variant, ...]) -> Verdict:
    """Say which constraint leaves no plan: the one without which there is one, ties before memory."""
    limit = Limit(tolerance=1.0, seed=setting.options.seed, follow_up_time=0.0)
    for variant in variants:
        problem = variant.problem
        if problem.ties and setting.options.solver(replace(problem, ties=()), limit, None).choice is not None:
            ties = setting.ties_for(variant.graph)
            listed = "; ".join(f"{' and '.join(t.stages)} share {', '.join(t.fields)} [{t.source}]" for t in ties)
            return Verdict(text, "tie", f"the target runs stages with one value: {listed}")
    for variant in variants:
        roomy = replace(variant.problem, device_capacity=UNLIMITED_UNITS, host_capacity=UNLIMITED_UNITS)
        if setting.options.solver(roomy, limit, None).choice is not None:
            limits = {name: capacities for name, (capacities, _) in setting.pool_limits({}).items()}
            overflow = find_overflow(variant.graph, variant.tables, setting.capacities_bytes, limits)
            return Verdict(text, "memory", f"no combination of layouts fits; the tightest: {overflow.sentence}")
    return Verdict(text, "rule", "no meshes lie side by side like that on this cluster")


def _beside(plan: Plan, condition: Condition, found: Found, outcome: Outcome) -> Verdict:
    other = bound_plan(found.setting, outcome)
    compared = difference(plan, other, ("chosen", condition.text))
    slower = other.period_s / plan.period_s - 1
    inexact = [rewrite for rewrite in other.rewrites if rewrite.semantics != "exact"]
    classes = sorted({rewrite.semantics for rewrite in inexact})
    listed = ", ".join(f"{rewrite.name} ({rewrite.semantics}; {rewrite.where})" for rewrite in inexact)
    notes = [f"the pipeline does not allow it: it uses {listed}"] if found.wide else []
    if compared.same:
        reason = "the chosen plan is the best one under this condition too"
    elif slower >= 0:
        reason = f"the best such plan takes {format_seconds(other.period_s)} a step, {slower:.1%} more"
    else:
        reason = f"the best such plan takes {format_seconds(other.period_s)} a step, {-slower:.1%} less"
        notes += _why_unchosen(plan, other, found, classes, -slower)
    return Verdict(condition.text, "plan", reason, other, compared, tuple(notes))


def _why_unchosen(plan: Plan, other: Plan, found: Found, classes: list[str], gain: float) -> list[str]:
    """Say why a faster plan was not chosen."""
    least = found.setting.context.allow.minimum_gain
    if (other.target, other.devices.hardware) != (plan.target, plan.devices.hardware):
        return [f"the pipeline names {plan.target.name} on {plan.devices.hardware}"]
    if classes and not found.wide and gain < least:
        return [f"it is `{' and '.join(classes)}` and saves less than allow.minimum_gain: {least:g}"]
    if plan.objective.name != "step_time":
        return [f"the plan was chosen for {plan.objective.name}"]
    if gain <= plan.gap + 1e-3:
        return [f"the chosen plan is proven within {plan.gap:.2%} only; --tolerance asks for more"]
    if not found.wide and other.devices != plan.devices:
        return ["it has other machines than the pipeline names"]
    return [] if found.wide else ["the value lies outside of the search space, as one of `fix` may"]
