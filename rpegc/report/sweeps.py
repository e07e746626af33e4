"""A sweep as a table in the terminal, as CSV, and as a plot that needs no other file: SVG or HTML."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape as html_escape

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from rpegc.reasons import Sweep, SweepRow
from rpegc.report.terminal import grid
from rpegc.units import format_seconds

CSV_COLUMNS = (
    "status",
    "front",
    "period_s",
    "interval_low_s",
    "interval_high_s",
    "lower_bound_s",
    "gpu_hours",
    "usd",
    "tokens_per_s_per_gpu",
    "mfu",
    "gpus",
    "idle_gpus",
    "staleness_bound",
    "mode",
    "reason",
)


def show_sweep(sweep: Sweep, console: Console, only_front: bool = False) -> None:
    """Print a row a point; `*` marks the Pareto front over step time, GPU-hours, money and staleness."""
    measures = ("step", "80 % interval", "GPU-hours", "USD", "tokens/s/GPU", "MFU", "GPUs", "mode", "what is wrong")
    table = grid("", *sweep.axes, *measures)
    for row in sweep.rows:
        if not only_front or row.front or row.period_s is None:
            table.add_row("*" if row.front else "", *(escape(v) for v in row.values.values()), *_cells(row))
    console.print(table)
    console.print(Text("* no other point of the same workload is better in step time, GPU-hours, money and staleness"))


def _cells(row: SweepRow) -> tuple[str, ...]:
    if row.period_s is None or row.interval_s is None:
        return ("",) * 8 + (escape(f"{row.status}: {row.reason}" if row.reason else row.status),)
    low, high = row.interval_s
    return (
        format_seconds(row.period_s),
        f"{format_seconds(low)} .. {format_seconds(high)}",
        f"{row.gpu_hours:.3g}",
        "" if row.usd is None else f"{row.usd:,.2f}",
        f"{row.tokens_per_s_per_gpu:,.0f}",
        f"{row.mfu:.1%}",
        f"{row.gpus}" + (f" ({row.idle_gpus} idle)" if row.idle_gpus else ""),
        escape(f"{row.mode}, stale {row.staleness}" if row.staleness else row.mode),
        "" if row.status == "proven" else row.status,
    )


def sweep_csv(sweep: Sweep) -> str:
    """Return the sweep as CSV: the axes, then `CSV_COLUMNS`; empty where a point has no plan."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*sweep.axes, *CSV_COLUMNS])
    for row in sweep.rows:
        low, high = row.interval_s or (None, None)
        writer.writerow(
            [
                *row.values.values(),
                row.status,
                int(row.front),
                *(_number(value) for value in (row.period_s, low, high, row.lower_bound_s, row.gpu_hours, row.usd)),
                *(_number(value) for value in (row.tokens_per_s_per_gpu, row.mfu, row.gpus, row.idle_gpus)),
                _number(row.staleness),
                row.mode,
                row.reason,
            ]
        )
    return out.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 480, 70, 240, 40, 60
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8d5a97", "#c98a1b", "#3d3d3d", "#5bb0ba", "#a23e12")


def sweep_svg(sweep: Sweep) -> str:
    """Return a plot of step time over the first axis with several numbers, a line for each value of the others."""
    axis = next((n for n, v in sweep.axes.items() if len(v) > 1 and all(x.isdigit() for x in v)), "")
    marks = [float(v) for v in sweep.axes[axis]] if axis else [float(i) for i in range(len(sweep.rows))]
    top = max([row.interval_s[1] for row in sweep.rows if row.interval_s], default=1.0)
    step = _nice(top / 5)
    top = step * math.ceil(top / step)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, TOP - 16, f"{sweep.name}: seconds a step, with 80 % interval; rings: Pareto front", "start"),
    ]
    for tick in range(round(top / step) + 1):
        y = _y(tick * step, top)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick * step:g}", "end"))
    for mark in dict.fromkeys(marks):
        parts.append(_text(_x(mark, marks), HEIGHT - BOTTOM + 20, f"{mark:g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, axis or "point", "middle"))
    for number, (label, rows) in enumerate(_series(sweep, axis).items()):
        colour = COLOURS[number % len(COLOURS)]
        placed = [(_x(float(r.values[axis]) if axis else float(i), marks), r) for i, r in rows]
        parts += _line(placed, top, colour)
        if label:
            parts.append(_text(WIDTH - RIGHT + 20, TOP + 18 * number, label, "start", colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _series(sweep: Sweep, axis: str) -> dict[str, list[tuple[int, SweepRow]]]:
    series: dict[str, list[tuple[int, SweepRow]]] = {}
    varied = [name for name, values in sweep.axes.items() if name != axis and len(values) > 1]
    for place, row in enumerate(sweep.rows):
        label = ", ".join(f"{name} {row.values[name]}" for name in varied) if axis else ""
        series.setdefault(label, []).append((place, row))
    return series


def _line(placed: Sequence[tuple[float, SweepRow]], top: float, colour: str) -> list[str]:
    parts = []
    shown = [(x, row) for x, row in placed if row.period_s is not None and row.interval_s is not None]
    path = " ".join(f"{x:.1f},{_y(row.period_s or 0.0, top):.1f}" for x, row in shown)
    if len(shown) > 1:
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    for x, row in shown:
        low, high = row.interval_s or (0.0, 0.0)
        y = _y(row.period_s or 0.0, top)
        parts.append(
            f'<line x1="{x:.1f}" y1="{_y(low, top):.1f}" x2="{x:.1f}" y2="{_y(high, top):.1f}" stroke="{colour}" '
            'stroke-opacity="0.35"/>'
        )
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        if row.front:
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="none" stroke="{colour}"/>')
    for x, row in placed:
        if row.period_s is None:
            parts.append(_text(x, HEIGHT - BOTTOM - 4, "\N{MULTIPLICATION SIGN}", "middle", colour))
    return parts


def _x(value: float, marks: Sequence[float]) -> float:
    """Return the place of a value: logarithmic where all marks are positive and span a factor of 4."""
    low, high = min(marks), max(marks)
    if low > 0 and high >= 4 * low:
        value, low, high = math.log(value), math.log(low), math.log(high)
    share = (value - low) / (high - low) if high > low else 0.5
    return LEFT + 20 + share * (WIDTH - LEFT - RIGHT - 40)


def _y(seconds: float, top: float) -> float:
    return HEIGHT - BOTTOM - seconds / top * (HEIGHT - TOP - BOTTOM)


def _nice(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least as large as the value."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222") -> str:
    shown = html_escape(text)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{shown}</text>'


def sweep_html(sweep: Sweep) -> str:
    """Return plot and table as one HTML file without any other."""
    head = "".join(f"<th>{html_escape(name)}</th>" for name in (*sweep.axes, *CSV_COLUMNS))
    body = []
    for line in csv.reader(io.StringIO(sweep_csv(sweep))):
        body.append("<tr>" + "".join(f"<td>{html_escape(cell)}</td>" for cell in line) + "</tr>")
    style = "body{font-family:sans-serif}td,th{padding:2px 8px;text-align:right}svg{max-width:60em}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html_escape(sweep.name)}</title>'
        f"<style>{style}</style></head><body>\n{sweep_svg(sweep)}<table><tr>{head}</tr>\n"
        + "\n".join(body[1:])
        + "\n</table></body></html>\n"
    )
