"""Two plans compared: decisions, seconds term by term, memory. Data only; a report renders it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from rpegc.plan import Plan
from rpegc.reasons import Decision, Difference, Figure

Names = tuple[str, str]


def difference(first: Plan, second: Plan, names: Names = ("first", "second")) -> Difference:
    """Return how two plans differ, the largest changes first; `names` says what the two are called."""
    return Difference(
        *names,
        figures=_figures(first, second),
        decisions=tuple(_decisions(first, second)),
        stages=_by_change(_stage_seconds(first), _stage_seconds(second), "s"),
        terms=_by_change(_term_seconds(first), _term_seconds(second), "s"),
        memory=_by_change(_phase_bytes(first), _phase_bytes(second), "bytes"),
    )


def _figures(first: Plan, second: Plan) -> tuple[Figure, ...]:
    rows: tuple[tuple[str, str, float | None, float | None], ...] = (
        ("period", "s", first.period_s, second.period_s),
        ("simulated period", "s", first.simulated_period_s, second.simulated_period_s),
        ("lower bound", "s", first.lower_bound_s, second.lower_bound_s),
        ("GPU-hours a step", "h", first.gpu_hours_per_step, second.gpu_hours_per_step),
        ("USD a step", "USD", first.usd_per_step, second.usd_per_step),
        ("tokens/s/GPU", "", first.tokens_per_s_per_gpu, second.tokens_per_s_per_gpu),
        ("MFU", "share", first.mfu, second.mfu),
        ("staleness", "versions", first.staleness.bound, second.staleness.bound),
        ("GPUs", "", first.devices.gpus, second.devices.gpus),
    )
    return tuple(Figure(*row) for row in rows if row[2] is not None or row[3] is not None)


def _decisions(first: Plan, second: Plan) -> Iterator[Decision]:
    """Yield what was chosen differently: target, machine, mode, rewrites, meshes, layouts."""
    whole = (_whole(first), _whole(second))
    for what in whole[0]:
        if whole[0][what] != whole[1][what]:
            yield Decision("plan", what, whole[0][what], whole[1][what])
    fired = [
        {f"{r.name}: {r.where}": r.semantics for r in plan.rewrites if r.name != "place"} for plan in (first, second)
    ]
    for name in dict.fromkeys((*fired[0], *fired[1])):
        if (name in fired[0]) != (name in fired[1]):
            yield Decision("rewrite", name, fired[0].get(name, ""), fired[1].get(name, ""))
    stages = [{stage.name: stage for stage in plan.stages} for plan in (first, second)]
    for name in dict.fromkeys((*stages[0], *stages[1])):
        pair = [_choices(plan, name) if name in by else {} for plan, by in zip((first, second), stages, strict=True)]
        for what in dict.fromkeys((*pair[0], *pair[1])):
            values = (pair[0].get(what, ""), pair[1].get(what, ""))
            if values[0] != values[1]:
                yield Decision(name, what, *values)


def _whole(plan: Plan) -> dict[str, str]:
    places = [rewrite.where for rewrite in plan.rewrites if rewrite.name == "place"]
    return {
        "target": f"{plan.target.name} {plan.target.version}",
        "engine": plan.graph.engine,
        "mode": plan.graph.mode,
        "placement": ", ".join(places),
        "hardware": plan.devices.hardware,
        "nodes": str(plan.devices.nodes),
    }


def _choices(plan: Plan, name: str) -> dict[str, str]:
    """Return mesh and layout fields of a stage."""
    stage = plan.stage(name)
    mesh = {"mesh": f"{stage.mesh} {plan.mesh(stage.mesh).mesh_class}"} if stage.mesh else {"mesh": "host"}
    fields = asdict(stage.layout) if stage.layout else {}
    return mesh | {key: str(value) for key, value in fields.items()}


def _stage_seconds(plan: Plan) -> dict[str, float]:
    return {stage.name: stage.seconds for stage in plan.stages}


def _term_seconds(plan: Plan) -> dict[str, float]:
    return {f"{stage.name}.{name}": term.seconds for stage in plan.stages for name, term in stage.terms.items()}


def _phase_bytes(plan: Plan) -> dict[str, float]:
    """Return bytes on a GPU, by the phase in which they are held; a phase may occur on several meshes."""
    held: dict[str, float] = {}
    for phase in plan.memory:
        held[phase.phase] = max(held.get(phase.phase, 0.0), phase.device_total_bytes)
    return held


def _by_change(first: Mapping[str, float], second: Mapping[str, float], unit: str) -> tuple[Figure, ...]:
    names: Iterable[str] = dict.fromkeys((*first, *second))
    rows = [Figure(name, unit, first.get(name), second.get(name)) for name in names]
    return tuple(sorted(rows, key=lambda row: (-abs(row.change), row.name)))
