"""Validation as text, JSON and Markdown; `rpegc validate` prints what this file returns."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rpegc.cost.intervals import BANDS
from rpegc.errors import InputError, guess
from rpegc.validate.families import FAMILIES, FamilyResult, evaluate
from rpegc.validate.table import Folder

HEADER = (
    "family", "what", "rows", "median", "p90", "bias", "left out", "left-out median", "left-out p90", "bar",
    "coverage", "holds",
)  # fmt: skip
"""Columns of the table; `coverage` is that of 80 % intervals on left-out rows."""


def validate(folder: Path | None, family: str | None) -> list[FamilyResult]:
    """Return the results on a folder (None: the rows of the package), of one family or of all.

    Raises `InputError` for an unknown family, and for a folder without a row of what is asked for.
    """
    if family is not None and family not in FAMILIES:
        raise InputError(f"unknown family `{family}`", None, guess(family, FAMILIES))
    results = evaluate(Folder(folder), [family] if family else list(FAMILIES))
    if not results:
        where = f"the folder `{folder}` has" if folder else "the package has"
        raise InputError(
            f"{where} no rows to validate: files are train_*, comm_*, kernel_aic_*, gen_*, rl_* and verdicts_*.csv"
        )
    return results


def passes(results: Sequence[FamilyResult]) -> bool:
    """Return whether no family misses its bar; a family without predicted rows misses nothing."""
    return all(result.holds is not False for result in results if result.row_ids)


def table(results: Sequence[FamilyResult]) -> list[dict[str, str]]:
    """Return the table, a row for each family with predicted rows."""
    return [dict(zip(HEADER, (result.family, *_cells(result)), strict=True)) for result in results if result.row_ids]


def _cells(result: FamilyResult) -> tuple[str, ...]:
    median, p90 = result.figures(result.predicted)
    left_median, left_p90 = result.figures(result.left_out)
    bar = result.definition.bar
    return (
        result.definition.title,
        str(len(result.row_ids)),
        _percent(median),
        _percent(p90),
        f"{100 * result.bias:+.1f} %",
        result.definition.parts,
        _percent(left_median),
        _percent(left_p90),
        f"{100 * bar[0]:g} / {100 * bar[1]:g} %" if bar else "none",
        f"{100 * result.coverage:.0f} %",
        {True: "yes", False: "no", None: "no bar"}[result.holds],
    )


def skipped_lines(results: Sequence[FamilyResult]) -> list[str]:
    """Return the reasons for which rows were skipped, with their number and the first ids."""
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    known: set[str] = set()
    for result in results:
        new = [row for row in result.skipped if row.row_id not in known]
        known |= {row.row_id for row in new} if result.family.startswith("training") else set()
        for row in new:
            reasons[result.family, row.reason].append(row.row_id)
    lines = []
    for (family, reason), ids in reasons.items():
        shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
        lines.append(f"{family}: {len(ids)} skipped: {reason} ({shown})")
    return lines


def to_json(results: Sequence[FamilyResult]) -> str:
    """Return families and rows as JSON: seconds (bytes for memory), errors as shares."""
    return json.dumps(
        {"families": [_family(result) for result in results], "rows": [row for one in results for row in _rows(one)]},
        indent=1,
    )


def _family(result: FamilyResult) -> dict[str, Any]:
    known = bool(result.row_ids)
    median, p90 = result.figures(result.predicted) if known else (None, None)
    left_median, left_p90 = result.figures(result.left_out) if known else (None, None)
    return {
        "family": result.family,
        "rows": len(result.row_ids),
        "statistics": list(_statistics(result)),
        "median": median,
        "p90": p90,
        "bias": result.bias if known else None,
        "left_out": result.definition.parts,
        "left_out_median": left_median,
        "left_out_p90": left_p90,
        "bar": result.definition.bar,
        "holds": result.holds if known else None,
        "coverage": result.coverage if known else None,
        "skipped": [{"row_id": row.row_id, "reason": row.reason} for row in result.skipped],
    }


def _statistics(result: FamilyResult) -> tuple[str, str]:
    if result.definition.verdict:
        return ("wrong of what fits", "wrong of what does not fit")
    return ("mean", "maximum") if result.definition.worst else ("median", "p90")


def _rows(result: FamilyResult) -> list[dict[str, Any]]:
    if not result.row_ids:
        return []
    low, high = result.band()
    columns = (result.row_ids, result.sources, result.predicted, result.left_out, result.measured)
    return [
        {
            "row_id": row_id,
            "family": result.family,
            "predicted": float(predicted),
            "left_out": float(left_out),
            "measured": float(measured),
            "low": float(predicted * low),
            "high": float(predicted * high),
            "source": source,
        }
        for row_id, source, predicted, left_out, measured in zip(*columns, strict=True)
    ]


def markdown(results: Sequence[FamilyResult]) -> str:
    """Return the table and the skipped rows as Markdown, for docs/model.md."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "|".join("---" for _ in HEADER) + "|"]
    lines += ["| " + " | ".join(row.values()) + " |" for row in table(results)]
    lines += ["", "Rows skipped:", ""] + [f"- {line}" for line in skipped_lines(results)]
    return "\n".join(lines)


def bands(results: Sequence[FamilyResult]) -> str:
    """Return the 80 % bands of the families that prices rest on, as `rpegc.cost.intervals` states them."""
    known = [result for result in results if result.family in BANDS and result.row_ids]
    return "\n".join("{}: {:.3f} to {:.3f}".format(result.family, *result.band()) for result in known)


def write_page(path: Path, text: str) -> None:
    """Write a page; raises `InputError` if it cannot be written."""
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if np.isfinite(value) else "-"
