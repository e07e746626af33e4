"""`rpegc compile --robust` and `--candidates`: a choice among several good plans, and a race between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rpegc.compiler import best_plan, plan_files
from rpegc.difference import difference
from rpegc.emit import check_replaceable, replace_folder
from rpegc.explain.candidates import candidates, most_different
from rpegc.explain.odds import SHARED, odds
from rpegc.explain.race import race_files
from rpegc.frontend.load import load_pipeline
from rpegc.plan import Alternative, Assumption, Plan
from rpegc.reasons import Odds
from rpegc.setting import Options, setting_of
from rpegc.units import format_seconds

Progress = Callable[[str], None]
SHOWN_DECISIONS = 4
"""Decisions by which an alternative is described."""


def compile_among(
    path: Path, folder: Path | None, options: Options, robust: bool, count: int, progress: Progress = lambda _: None
) -> tuple[Plan, Path, tuple[Odds, ...]]:
    """Compile a pipeline, weigh the plan against alternatives, and write it, all or nothing.

    With `robust` the plan of the least expected period is chosen; with a `count` above 1 a race of so many plans is
    written too. Returns the plan, its folder, and the odds, the chosen plan first.
    """
    pipeline = load_pipeline(path)
    folder = folder or Path("out") / pipeline.name
    check_replaceable(folder)
    setting = setting_of(pipeline, options)
    best = best_plan(setting, progress)
    plans = (best, *candidates(setting, best, progress))
    progress("drawing errors")
    if robust:
        expected = [row.expected_s for row in odds(plans, options.seed)]
        first = min(range(len(plans)), key=lambda place: expected[place])
        plans = (plans[first], *(plan for place, plan in enumerate(plans) if place != first))
    weighed = odds(plans, options.seed)
    plan = _with_odds(weighed, best)
    progress("writing")
    files = plan_files(plan, setting)
    if count > 1:
        chosen = most_different(plans[0], plans[1:], count)
        files |= race_files((plan, *chosen[1:]), (files, *(plan_files(other, setting) for other in chosen[1:])))
    replace_folder(files, folder)
    return plan, folder, weighed


def _with_odds(weighed: tuple[Odds, ...], best: Plan) -> Plan:
    """Return the chosen plan with the others as alternatives, and with the certificate of the search."""
    plan = weighed[0].plan
    rows = [_alternative(plan, row) for row in weighed[1:]]
    # The bound holds for every plan of the searched space, whichever of them is taken.
    bound = min(best.lower_bound_s, plan.period_s)
    shared = Assumption(
        "error of a price that all layouts of a kind of stage share", f"{SHARED:g}", "assumed", __name__
    )
    return replace(
        plan,
        lower_bound_s=bound,
        gap=1 - bound / plan.period_s,
        search=best.search,
        alternatives=(*rows, *best.alternatives),
        assumptions=(*plan.assumptions, shared),
    )


def _alternative(plan: Plan, row: Odds) -> Alternative:
    decisions = difference(plan, row.plan).decisions[:SHOWN_DECISIONS]
    found = {f"{decision.where} {decision.what}": decision.second for decision in decisions}
    why = (
        f"the chosen plan is faster with probability {row.beaten or 0.0:.2f}; expected {format_seconds(row.expected_s)}"
    )
    return Alternative(row.plan.period_s, found, why)
