"""The files that a sweep writes: checked before the work, written after it."""

from __future__ import annotations

import os
from pathlib import Path

from rpegc.errors import InputError
from rpegc.reasons import Sweep
from rpegc.report.sweeps import sweep_csv, sweep_html, sweep_svg

PLOTS = {".svg": sweep_svg, ".html": sweep_html}


def check_files(table: Path | None, plot: Path | None) -> None:
    """Raise InputError if a file could not be written, or a plot is of no known kind."""
    if plot is not None and plot.suffix not in PLOTS:
        raise InputError(f"--plot {plot}: must end in {' or '.join(PLOTS)}")
    for path in (table, plot):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise InputError(f"{path}: cannot be written (no such folder, or it is one)")


def write_sweep(sweep: Sweep, table: Path | None, plot: Path | None) -> None:
    """Write the table as CSV and the plot, each all or nothing. Raises InputError if a file cannot be written."""
    if table is not None:
        _write(table, sweep_csv(sweep))
    if plot is not None:
        _write(plot, PLOTS[plot.suffix](sweep))


def _write(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.new")
    try:
        scratch.write_text(text, encoding="utf-8", newline="\n")
        os.replace(scratch, path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
