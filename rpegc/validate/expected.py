"""Bars that are missed today, with today's figures: the line that continuous integration holds.

`data/expected.csv` lists, for each family that misses its bar, its figures (median and 90th percentile, or mean and
maximum) in both columns. A family that is not listed must keep its bar; a listed one must not get worse, and leaves
the list when it keeps its bar.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib import resources

from rpegc.validate.families import FamilyResult

TOLERANCE = 0.005
"""Errors may differ by this much between machines (rounding in the refits) without a regression."""

COLUMNS = ("median", "p90", "left_out_median", "left_out_p90")


def expected_misses() -> dict[str, tuple[float, ...]]:
    """Return the figures of the families that miss their bar, in the order of `COLUMNS`."""
    text = resources.files("rpegc.validate").joinpath("data", "expected.csv").read_text(encoding="utf-8")
    return {row["family"]: tuple(float(row[name]) for name in COLUMNS) for row in csv.DictReader(text.splitlines())}


def regressions(results: Sequence[FamilyResult], expected: Mapping[str, tuple[float, ...]] | None = None) -> list[str]:
    """Return one line for each family that misses its bar unexpectedly, got worse, or keeps its bar though listed."""
    known = expected_misses() if expected is None else expected
    lines = []
    for result in results:
        if not result.row_ids or result.holds is None:
            continue
        figures = (*result.figures(result.predicted), *result.figures(result.left_out))
        if result.family not in known:
            if not result.holds:
                lines.append(f"{result.family}: misses its bar ({_shown(figures)})")
            continue
        limits = known[result.family]
        if result.holds:
            lines.append(f"{result.family}: keeps its bar, take it off the list of expected misses")
        elif any(figure > limit + TOLERANCE for figure, limit in zip(figures, limits, strict=True)):
            lines.append(f"{result.family}: worse than expected ({_shown(figures)}; expected {_shown(limits)})")
    return lines


def _shown(figures: Sequence[float]) -> str:
    fit, left_out = figures[:2], figures[2:]
    return "; left out ".join(" / ".join(f"{100 * figure:.1f} %" for figure in pair) for pair in (fit, left_out))
