"""Differences, explanations and verdicts in a terminal: renders what others computed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from rpegc.reasons import Difference, Explanation, Figure, Odds, Verdict
from rpegc.report.terminal import grid
from rpegc.target import describe_layout
from rpegc.units import format_bytes, format_count, format_seconds

SHOWN_TERMS = 12
"""Terms of time that a difference lists; the rest is in `--json`."""
LEAST_SHARE = 0.002
"""Changes below this share of the period are not listed."""


def show_explanation(explanation: Explanation, console: Console) -> None:
    """Print why a plan takes its time."""
    found = explanation.bottleneck
    _title(console, "Why this plan")
    lines = [
        f"{explanation.name}: {format_seconds(explanation.period_s)} a step; no plan of the searched space is below "
        f"{format_seconds(explanation.lower_bound_s)}",
        f"bound by the cycle {' -> '.join(found.cycle)}; its largest stage is {found.largest}",
    ]
    if found.next_cycle:
        lines.append(
            f"next bottleneck: if {found.largest} took no time, the step would take "
            f"{format_seconds(found.next_period_s)}, bound by {' -> '.join(found.next_cycle)}"
        )
    for line in lines:
        console.print(Text(f"- {line}"))
    console.print()
    _title(console, "Meshes")
    rows = grid("mesh", "GPUs", "busy", "share of the period", "stages")
    for load in explanation.loads:
        rows.add_row(
            load.mesh, str(load.gpus), format_seconds(load.busy_s), f"{load.share:.1%}", ", ".join(load.stages)
        )
    console.print(rows)
    console.print()
    _title(console, "Stages")
    depth = {row.stage: row for row in explanation.work_depth}
    rows = grid("stage", "time", "binds", "1 % faster gains", "work (FLOP)", "depth", "TFLOP/s per GPU")
    for share in explanation.shares:
        work = depth.get(share.stage)
        rate = work.flop_per_s_per_gpu if work else None
        rows.add_row(
            share.stage,
            format_seconds(share.seconds),
            "yes" if share.on_cycle else "",
            f"{share.lever:.2f} %" if share.lever > 0 else "",
            f"{work.work_flop:.3g}" if work and work.work_flop else "",
            format_count(work.depth) if work and work.depth else "",
            f"{rate / 1e12:.0f}" if rate else "",
        )
    console.print(rows)
    console.print()
    _title(console, "Guidelines (arXiv 2608.27046)")
    rows = grid("statement", "this plan", "goes along")
    for guideline in explanation.guidelines:
        rows.add_row(escape(guideline.statement), escape(guideline.evidence), "yes" if guideline.followed else "no")
    console.print(rows)


def show_verdict(verdict: Verdict, console: Console) -> None:
    """Print what becomes of a plan under a condition."""
    _title(console, f"Why not {verdict.condition}")
    head = verdict.reason if verdict.kind == "plan" else f"forbidden ({verdict.kind}): {verdict.reason}"
    console.print(Text(f"- {head}"))
    for note in verdict.notes:
        console.print(Text(f"- {note}"))
    if verdict.difference is not None and not verdict.difference.same:
        console.print()
        show_difference(verdict.difference, console)


def show_difference(found: Difference, console: Console) -> None:
    """Print two plans beside each other."""
    if found.same:
        console.print(Text("the plans take the same decisions at the same price"))
        return
    period = next(figure for figure in found.figures if figure.name == "period")
    least = LEAST_SHARE * max(period.first or 0.0, period.second or 0.0)
    _title(console, "Figures")
    _figures(found, found.figures, console)
    if found.decisions:
        _title(console, "Decisions")
        rows = grid("where", "what", escape(found.first), escape(found.second))
        for decision in found.decisions:
            rows.add_row(*(escape(text) for text in (decision.where, decision.what, decision.first, decision.second)))
        console.print(rows)
        console.print()
    for title, figures in (("Seconds by stage", found.stages), ("Seconds by term", found.terms)):
        _title(console, title)
        _figures(found, tuple(row for row in figures if abs(row.change) >= least)[:SHOWN_TERMS], console)
    _title(console, "GPU memory by phase")
    _figures(found, tuple(row for row in found.memory if row.change), console)


def show_odds(weighed: Sequence[Odds], console: Console) -> None:
    """Print plans among each other: the chosen one first."""
    _title(console, "Odds under the 80 % intervals")
    table = grid("plan", "period", "expected", "80 % interval", "chosen is faster", "differs in")
    for number, row in enumerate(weighed, start=1):
        differing = difference_words(weighed[0], row) if number > 1 else ""
        table.add_row(
            "chosen" if number == 1 else str(number),
            format_seconds(row.plan.period_s),
            format_seconds(row.expected_s),
            f"{format_seconds(row.low_s)} .. {format_seconds(row.high_s)}",
            "" if row.beaten is None else f"{row.beaten:.0%}",
            escape(differing),
        )
    console.print(table)
    console.print()


def difference_words(first: Odds, other: Odds) -> str:
    """Return where two plans run stages: mode, placement and meshes, and the degrees of what each stage runs with."""
    words = []
    for stage in other.plan.stages:
        mine = next((s for s in first.plan.stages if s.name == stage.name), None)
        if stage.layout is not None and (mine is None or mine.layout != stage.layout):
            words.append(f"{stage.name}: {describe_layout(stage.layout)}")
    mode = [other.plan.graph.mode] if other.plan.graph.mode != first.plan.graph.mode else []
    return "; ".join([*mode, *words][:2])


def _figures(found: Difference, rows: tuple[Figure, ...], console: Console) -> None:
    table = grid("", escape(found.first), escape(found.second), "change")
    for row in rows:
        sign = "+" if row.change > 0 else ""
        change = f"{sign}{shown(row.change, row.unit)}" if row.change else ""
        table.add_row(row.name, shown(row.first, row.unit), shown(row.second, row.unit), change)
    console.print(table)
    console.print()


def shown(value: float | None, unit: str) -> str:
    """Print a figure in its unit."""
    if value is None:
        return ""
    if unit == "s":
        return format_seconds(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:,.4g}" if unit in ("h", "USD") else f"{value:,.0f}"


def _title(console: Console, title: str) -> None:
    console.print(Text(title, style="bold"))
