"""`rpegc validate`: what is compared, what is skipped and why, what a wrong constant does, what the docs say."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rpegc.cli import app
from rpegc.errors import InputError
from rpegc.hardware import load_machine
from rpegc.validate import kernels
from rpegc.validate.families import FAMILIES, FamilyResult
from rpegc.validate.refit import Constant, Problem, left_out_predictions
from rpegc.validate.report import HEADER, markdown, passes, table, to_json, validate

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "rpegc" / "validate" / "data"


@pytest.fixture(scope="module")
def results() -> list[FamilyResult]:
    return validate(None, None)


def copy_rows(folder: Path, name: str, count: int, **changes: str) -> None:
    with (DATA / name).open(newline="") as file:
        rows = list(csv.DictReader(file))[:count]
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({**row, **changes} for row in rows)


def test_every_family_has_rows_and_the_json_says_what_each_is(results: list[FamilyResult]) -> None:
    found = json.loads(to_json(results))
    assert [family["family"] for family in found["families"]] == list(FAMILIES)
    for family in found["families"]:
        wanted = {"family", "rows", "median", "p90", "bias", "left_out_median", "left_out_p90", "skipped"}
        assert wanted <= set(family)
        assert family["rows"] >= 5
        assert all(set(row) == {"row_id", "reason"} for row in family["skipped"])
    for row in found["rows"]:
        assert {"row_id", "family", "predicted", "measured", "low", "high", "source"} <= set(row)
        assert 0 < row["low"] <= row["high"]
        assert row["low"] < row["high"] or row["family"] == "memory_verdicts"  # a verdict has no interval
        assert row["source"]
    assert len(found["rows"]) == sum(family["rows"] for family in found["families"])


def test_what_is_left_out_is_predicted_worse_than_what_was_fitted(results: list[FamilyResult]) -> None:
    """A left-out column that copies the fit, or is no refit at all, would show here."""
    by_name = {result.family: result for result in results}
    for name in ("training_dense", "training_source", "peak_memory"):
        one = by_name[name]
        assert not np.allclose(one.left_out, one.predicted)
        assert one.figures(one.left_out)[0] > one.figures(one.predicted)[0]


def test_intervals_cover_about_four_of_five_left_out_rows(results: list[FamilyResult]) -> None:
    for result in results:
        if result.definition.verdict:
            continue
        largest = max(result.parts.count(part) for part in set(result.parts))
        enough = len(result.row_ids) >= 20 and len(set(result.parts)) >= 3  # two parts say little about a third
        if enough and 2 * largest < len(result.row_ids):  # and others little about a part that is most of the rows
            assert 0.7 <= result.coverage <= 0.9, result.family


def test_known_models_are_skipped_only_for_gpu_precision_or_what_the_source_leaves_out(
    results: list[FamilyResult],
) -> None:
    reasons = {row.reason for result in results for row in result.skipped}
    assert not any("no machine of the catalogue" in reason for reason in reasons)
    assert any("compressed sparse attention" in reason for reason in reasons)
    assert not any("latent attention" in reason or "state-space" in reason for reason in reasons)
    training = {row.row_id for result in results for row in result.skipped if result.family.startswith("training")}
    predicted = {row for result in results if result.family.startswith("training") for row in result.row_ids}
    assert predicted & training == set()


def test_the_documented_table_is_the_current_one(results: list[FamilyResult]) -> None:
    lines = (ROOT / "docs" / "model.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("| " + " | ".join(HEADER) + " |") + 2
    for row, line in zip(table(results), lines[start:], strict=False):
        documented = dict(zip(HEADER, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
        for column, value in row.items():
            if re.fullmatch(r"[+-]?[\d.]+ %", value):
                assert float(documented[column][:-2]) == pytest.approx(float(value[:-2]), abs=1.0), (
                    row["family"],
                    column,
                )
            else:
                assert documented[column] == value, (row["family"], column)
    for line in markdown(results).split("Rows skipped:")[1].splitlines():
        assert line in lines


def test_a_wrong_constant_makes_its_family_miss_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(name: str) -> object:
        found = load_machine(name)
        curves = {
            kind: replace(curve, bandwidth=replace(curve.bandwidth, value=0.4 * curve.bandwidth.value))
            for kind, curve in found.curves.items()
        }
        return replace(found, curves=curves)

    (right,) = validate(None, "collectives")
    assert right.holds
    assert passes([right])
    monkeypatch.setattr(kernels, "load_machine", planted)
    (wrong,) = validate(None, "collectives")
    assert wrong.holds is False
    assert not passes([wrong])
    assert wrong.figures(wrong.predicted)[0] > 2 * right.figures(right.predicted)[0]


def test_another_folder_is_read_and_what_is_unknown_there_is_named(tmp_path: Path) -> None:
    copy_rows(tmp_path, "train_llm_foundry_mpt.csv", 12)
    copy_rows(tmp_path, "train_nemo.csv", 1, model="Grok-9", row_id="a")
    copy_rows(tmp_path, "train_torchtitan.csv", 1, gpu="MI300X", row_id="b")
    copy_rows(tmp_path, "train_prime_rl.csv", 1, framework="homemade", row_id="c")
    answer = CliRunner().invoke(app, ["validate", "--json", "--data", str(tmp_path), "--family", "training_dense"])
    assert answer.exit_code in (0, 1)
    (family,) = json.loads(answer.stdout)["families"]
    assert family["rows"] == 12
    reasons = {row["row_id"]: row["reason"] for row in family["skipped"]}
    assert reasons == {
        "a": "unknown model Grok-9",
        "b": "no machine of the catalogue has the GPU MI300X",
        "c": "unknown framework homemade",
    }


def test_kernel_rows_without_an_id_are_numbered_as_in_their_file(tmp_path: Path) -> None:
    copy_rows(tmp_path, "kernel_aic_gemm_bf16.csv", 30, row_id="", source="")
    (family,) = validate(tmp_path, "gemm")
    assert family.row_ids[0] == "kernel_aic_gemm_bf16-00001"
    assert len(family.row_ids) == 30


def test_cells_that_are_no_numbers_skip_their_row_only(tmp_path: Path) -> None:
    copy_rows(tmp_path, "train_llm_foundry_mpt.csv", 3, n_gpus="many")
    copy_rows(tmp_path, "comm_gh200_alps.csv", 3, time_us="-1")
    found = {result.family: result for result in validate(tmp_path, None)}
    assert [row.reason for row in found["training_dense"].skipped] == ["`n_gpus` is no number: many"] * 3
    assert [row.reason for row in found["collectives"].skipped] == ["`time_us` is not a positive number: -1"] * 3
    assert passes(list(found.values()))


def test_user_errors_name_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown family `gem`"):
        validate(None, "gem")
    with pytest.raises(InputError, match="no rows"):
        validate(tmp_path, None)
    with pytest.raises(InputError, match="cannot read the folder"):
        validate(tmp_path / "absent", None)
    (tmp_path / "comm_x.csv").write_text("row_id,system\n1,A100\n")
    with pytest.raises(InputError, match="lacks the columns n_nodes"):
        validate(tmp_path, "collectives")


def test_a_refit_recovers_a_constant_from_the_other_rows_and_not_from_its_own() -> None:
    """Rows of y = c x; one part was measured with another c: it must be predicted with that of the others."""
    x = np.arange(1.0, 31.0)
    parts = ["odd" if index % 3 == 0 else "even" for index in range(30)]
    measured = np.where(np.array(parts) == "odd", 9.0, 3.0) * x
    problem = Problem(
        measured,
        [str(index) for index in range(30)],
        (Constant("c", 4.0, 2.0, 1.0),),
        {"c": np.ones(30, dtype=bool)},
        lambda values, rows: values.get("c", 4.0) * x[rows],
    )
    (predicted,) = left_out_predictions(problem, [parts])
    assert predicted[0] / x[0] == pytest.approx(3.0, rel=0.03)
    assert predicted[1] / x[1] == pytest.approx(9.0, rel=0.03)
