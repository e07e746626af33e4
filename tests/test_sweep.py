"""Sweeps: every point is a row, the front is a front, files stand alone, the number of workers changes nothing."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rpegc.errors import InputError
from rpegc.reasons import Sweep, SweepRow
from rpegc.report.sweeps import show_sweep, sweep_csv, sweep_html, sweep_svg
from rpegc.setting import Options
from rpegc.sweep.files import check_files, write_sweep
from rpegc.sweep.points import points, read_axis
from rpegc.sweep.run import _marked, sweep
from tests.plan_answers import QUICK, SMALL, printed, small_plan


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@cache
def small_sweep() -> Sweep:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "small.yaml"
        path.write_text(SMALL, encoding="utf-8")
        return sweep(path, {"nodes": ("1", "2"), "batch": ("63", "64")}, QUICK)


def test_a_point_is_what_compile_says_and_a_wrong_one_says_why() -> None:
    rows = small_sweep().rows
    assert [row.values for row in rows] == [{"nodes": n, "batch": b} for n in ("1", "2") for b in ("63", "64")]
    assert rows[3].period_s == small_plan().period_s
    assert rows[0].status == "refused"
    assert "63" in rows[0].reason


def test_workers_change_nothing(pipeline: Path) -> None:
    assert sweep(pipeline, {"nodes": ("1", "2"), "batch": ("63", "64")}, QUICK, workers=2) == small_sweep()


def test_a_point_that_does_not_fit_names_the_term(pipeline: Path) -> None:
    pipeline.write_text(SMALL.replace("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-70B"), encoding="utf-8")
    (row,) = sweep(pipeline, {"nodes": ("1",)}, Options(space="quick", tolerance=0.5)).rows
    assert row.status == "does not fit"
    assert "GiB" in row.reason or "room" in row.reason


def test_response_lengths_keep_their_shape(pipeline: Path) -> None:
    (point,) = points(pipeline, {"response-tokens": ("2000",)})
    assert '"mean": 2000.0, "p99": 8000.0, "max": 16384' in point.text


@pytest.mark.parametrize("text", ["", "4,,8", "4,4"])
def test_an_axis_is_a_list_of_values_that_differ(text: str) -> None:
    with pytest.raises(InputError):
        read_axis("--nodes", text)


def test_a_count_that_is_none_is_wrong_input(pipeline: Path) -> None:
    with pytest.raises(InputError, match="--nodes"):
        list(points(pipeline, {"nodes": ("many",)}))


def made_up(
    period: float | None, hours: float, stale: int = 0, batch: str = "64", usd: float | None = None
) -> SweepRow:
    if period is None:
        return SweepRow({"nodes": "1", "batch": batch}, "does not fit", "a GPU is too small, <b>")
    return SweepRow(
        {"nodes": "4", "batch": batch},
        "proven",
        period_s=period,
        interval_s=(period / 2, period * 2),
        lower_bound_s=period * 0.99,
        gpu_hours=hours,
        usd=usd,
        tokens_per_s_per_gpu=1000.0,
        mfu=0.3,
        gpus=16,
        idle_gpus=0,
        staleness=stale,
        mode="sync",
    )


def test_the_front_holds_what_nothing_of_the_same_workload_beats() -> None:
    rows = [made_up(10, 2), made_up(20, 1), made_up(11, 2), made_up(9, 2, stale=1), made_up(10, 2), made_up(None, 0)]
    other = made_up(99, 99, batch="128")
    assert [row.front for row in _marked([*rows, other])] == [True, True, False, True, False, False, True]


MADE_UP = Sweep(
    "made-<up>",
    {"nodes": ("1", "4"), "batch": ("64", "128")},
    _marked([made_up(None, 0), made_up(None, 0, batch="128"), made_up(10, 2, 1, usd=3.5), made_up(20, 4, batch="128")]),
)


def test_the_printed_table_and_the_files_are_these(golden: Callable[[str, str], None]) -> None:
    golden("answers/sweep.txt", printed(lambda console: show_sweep(MADE_UP, console)))
    golden("answers/sweep.csv", sweep_csv(MADE_UP))
    golden("answers/sweep.svg", sweep_svg(MADE_UP))


def test_the_plot_stands_alone() -> None:
    for found in (MADE_UP, small_sweep(), Sweep("none", {}, ())):
        ElementTree.fromstring(sweep_svg(found))
        html = sweep_html(found)
        assert "<b>" not in html
        assert "src=" not in html
        assert "href=" not in html
    assert len(list(csv.reader(io.StringIO(sweep_csv(MADE_UP))))) == 5


def test_files_are_checked_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="svg"):
        check_files(None, tmp_path / "plot.png")
    with pytest.raises(InputError, match="cannot be written"):
        check_files(tmp_path / "none" / "table.csv", None)
    write_sweep(MADE_UP, tmp_path / "t.csv", tmp_path / "p.html")
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == sweep_csv(MADE_UP)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.html", "t.csv"]
