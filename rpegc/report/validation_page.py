"""Validation as one self-contained page: a plot of predicted against measured for each family, every row linked.

What it shows is the document of `rpegc validate --json`; nothing is computed here but places on the paper.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

SIDE = 420.0
MARGIN = 54.0
UNITS: Mapping[str, tuple[str, float]] = {"peak_memory": ("GiB", 2.0**30)}
"""Unit of a family's values where it is not seconds, and how much of what the document holds makes one."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; } .no { color: #b00; font-weight: 600; }
svg { max-width: 100%; height: auto; } svg text { font-size: 11px; fill: #444; }
.grid { stroke: #e4e4e4; } .same { stroke: #888; } .band { stroke: #bbb; stroke-dasharray: 4 3; }
.fit { fill: #2563eb; fill-opacity: .55; } .out { fill: #ea580c; fill-opacity: .55; }
details { margin: .5rem 0 2rem; } td.source { text-align: left; max-width: 30rem; overflow-wrap: anywhere; }
"""


def page(document: Mapping[str, Any]) -> str:
    """Return the page of a validation document (`families`, `rows`), as HTML without outside parts."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["rows"]:
        rows.setdefault(row["family"], []).append(row)
    families = document["families"]
    body = [_summary(families)]
    for family in families:
        name = family["family"]
        body.append(f'<h2 id="{escape(name)}">{escape(name)}</h2>')
        body.append(f"<p>{_sentence(family)}</p>")
        if name in rows:
            unit, size = UNITS.get(name, ("s", 1.0))
            body += [_plot(rows[name], unit, size), _rows(rows[name], unit, size)]
        if family["skipped"]:
            body.append(_skipped(family["skipped"]))
    title = "rpegc: predicted against measured"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _summary(families: Sequence[Mapping[str, Any]]) -> str:
    head = ("family", "rows", "skipped", "fit", "left out", "bar", "coverage", "holds")
    lines = ["<table><tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    for family in families:
        bar = family["bar"]
        holds = {True: "yes", False: "no", None: "-"}[family["holds"]]
        cells = (
            str(family["rows"]),
            str(len(family["skipped"])),
            f"{_percent(family['median'])} / {_percent(family['p90'])}",
            f"{_percent(family['left_out_median'])} / {_percent(family['left_out_p90'])}",
            f"{_percent(bar[0])} / {_percent(bar[1])}" if bar else "none",
            _percent(family["coverage"]),
        )
        name = escape(family["family"])
        lines.append(
            f'<tr><td><a href="#{name}">{name}</a></td>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + f'<td class="{holds}">{holds}</td></tr>'
        )
    return "\n".join([*lines, "</table>"])


def _sentence(family: Mapping[str, Any]) -> str:
    first, second = family["statistics"]
    return escape(
        f"{family['rows']} rows; {first} / {second} of the absolute error {_percent(family['median'])} / "
        f"{_percent(family['p90'])} with the constants that ship, {_percent(family['left_out_median'])} / "
        f"{_percent(family['left_out_p90'])} with {family['left_out']} left out; 80 % intervals cover "
        f"{_percent(family['coverage'])} of the left-out rows."
    )


def _plot(rows: Sequence[Mapping[str, Any]], unit: str, size: float) -> str:
    """Return a square plot with logarithmic axes: blue as shipped, orange left out, dashed the 80 % interval."""
    values = [row[key] / size for row in rows for key in ("measured", "predicted", "left_out")]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def place(value: float) -> float:
        return MARGIN + (math.log10(value) - low) / (high - low) * SIDE

    total = SIDE + 2 * MARGIN
    parts = [f'<svg viewBox="0 0 {total:g} {total:g}" width="{total:g}" role="img">']
    for exponent in range(low, high + 1):
        at, label = place(10.0**exponent), f"1e{exponent}"
        parts.append(
            _line("grid", at, MARGIN, at, MARGIN + SIDE) + _line("grid", MARGIN, total - at, MARGIN + SIDE, total - at)
        )
        parts.append(f'<text x="{at:.1f}" y="{total - MARGIN + 16:g}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{MARGIN - 6:g}" y="{total - at + 4:.1f}" text-anchor="end">{label}</text>')
    parts.append(_line("same", MARGIN, total - MARGIN, total - MARGIN, MARGIN))
    for side in ("low", "high"):  # where the measured value is that end: parallel to the diagonal, a factor apart
        shift = place(rows[0][side] / size) - place(rows[0]["predicted"] / size)
        parts.append(_line("band", MARGIN, total - MARGIN + shift, total - MARGIN, MARGIN + shift))
    for row in rows:
        x = place(row["measured"] / size)
        words = f"{row['row_id']}: measured {_number(row['measured'] / size)} {unit}"
        for key, kind in (("predicted", "fit"), ("left_out", "out")):
            hint = f"{words}, {key.replace('_', ' ')} {_number(row[key] / size)} {unit}"
            dot = f'<circle class="{kind}" cx="{x:.1f}" cy="{total - place(row[key] / size):.1f}" r="3">'
            parts.append(f'<a href="#{escape(_anchor(row))}">{dot}<title>{escape(hint)}</title></circle></a>')
    middle = total / 2
    parts.append(f'<text x="{middle:g}" y="{total - 10:g}" text-anchor="middle">measured ({unit})</text>')
    parts.append(
        f'<text x="14" y="{middle:g}" text-anchor="middle" transform="rotate(-90 14 {middle:g})">predicted ({unit}): '
        "blue as shipped, orange left out</text></svg>"
    )
    return "\n".join(parts)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _rows(rows: Sequence[Mapping[str, Any]], unit: str, size: float) -> str:
    head = ("row", f"measured ({unit})", "predicted", "left out", "80 % interval", "source")
    lines = ["<details><summary>all rows</summary><table><tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    for row in rows:
        numbers = [_number(row[key] / size) for key in ("measured", "predicted", "left_out")]
        numbers.append(f"{_number(row['low'] / size)} to {_number(row['high'] / size)}")
        lines.append(
            f'<tr id="{escape(_anchor(row))}"><td>{escape(row["row_id"])}</td>'
            + "".join(f"<td>{number}</td>" for number in numbers)
            + f'<td class="source">{_linked(row["source"])}</td></tr>'
        )
    return "\n".join([*lines, "</table></details>"])


def _skipped(skipped: Sequence[Mapping[str, str]]) -> str:
    lines = "".join(f"<li>{escape(row['row_id'])}: {escape(row['reason'])}</li>" for row in skipped)
    return f"<details><summary>{len(skipped)} rows skipped</summary><ul>{lines}</ul></details>"


def _linked(source: str) -> str:
    """Return a source with a link to what it names first: a repository's file at its commit, or a paper."""
    found = re.search(r"github\.com/([\w.-]+/[\w.-]+)(?: ([\w./*-]+))?[^@]*(?:@([0-9a-f]{7,40}|v[\d.]+))?", source)
    paper = re.search(r"arXiv (\d{4}\.\d{5})", source)
    if found:
        repository, path, commit = found.groups()
        address = f"https://github.com/{repository}"
        if commit:
            address += f"/blob/{commit}/{path}" if path and re.search(r"\.\w+$", path) else f"/tree/{commit}"
    elif paper:
        address = f"https://arxiv.org/abs/{paper.group(1)}"
    else:
        return escape(source)
    return f'<a href="{escape(address)}">{escape(source)}</a>'


def _anchor(row: Mapping[str, Any]) -> str:
    return f"{row['family']}-{row['row_id']}"


def _number(value: float) -> str:
    return f"{value:.4g}"
