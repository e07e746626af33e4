"""What `rpegc validate` leaves behind: the page with plots, the line that CI holds, the bands that prices rest on."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rpegc.cli import app
from rpegc.cost.framework import interval
from rpegc.cost.framework_classes import framework_constants
from rpegc.cost.intervals import BANDS
from rpegc.report.validation_page import page
from rpegc.validate.expected import expected_misses, regressions
from rpegc.validate.families import FAMILIES, FamilyResult, evaluate
from rpegc.validate.report import to_json
from rpegc.validate.table import Folder


class Elements(HTMLParser):
    """All start tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def result(family: str, predicted: list[float], left_out: list[float]) -> FamilyResult:
    count = len(predicted)
    ids = tuple(f"row-{index}" for index in range(count))
    sources = ("github.com/a/b docs/c.md @0123456789abcdef",) * count
    parts = tuple(f"part {index}" for index in range(count))
    return FamilyResult(family, ids, sources, np.ones(count), np.array(predicted), np.array(left_out), parts, ())


@pytest.fixture(scope="module")
def attention_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[dict[str, object]]], str]:
    path = tmp_path_factory.mktemp("page") / "page.html"
    answer = CliRunner().invoke(app, ["validate", "--family", "attention", "--json", "--html", str(path)])
    assert answer.exit_code == 0
    return json.loads(answer.stdout), path.read_text(encoding="utf-8")


def test_every_row_is_plotted_twice_and_linked_to_its_source(
    attention_page: tuple[dict[str, list[dict[str, object]]], str],
) -> None:
    document, text = attention_page
    elements = Elements(text)
    rows = document["rows"]
    assert len(elements.of("circle")) == 2 * len(rows)
    links = [link["href"] for link in elements.of("a")]
    outside = [link for link in links if link and link.startswith("https://github.com/ai-dynamo/aiconfigurator/")]
    assert len(outside) == len(rows)
    anchors = {row["id"] for row in elements.of("tr") if "id" in row}
    assert {link[1:] for link in links if link and link.startswith("#attention-")} == anchors


def test_the_page_needs_nothing_from_outside(attention_page: tuple[dict[str, list[dict[str, object]]], str]) -> None:
    elements = Elements(attention_page[1])
    assert not any(elements.of(tag) for tag in ("script", "link", "img"))


def test_a_prediction_without_error_lies_on_the_diagonal() -> None:
    text = page(json.loads(to_json([result("gemm", [1.0, 2.0], [1.0, 1.0])])))
    first = Elements(text).of("circle")[0]
    centre = float(first["cx"] or 0)
    total = float((Elements(text).of("svg")[0]["width"]) or 0)
    assert float(first["cy"] or 0) == pytest.approx(total - centre, abs=0.1)


def test_text_of_a_table_is_shown_and_not_run() -> None:
    document = json.loads(to_json([result("gemm", [1.0], [1.0])]))
    document["rows"][0] |= {"row_id": "<script>alert(1)</script>", "source": "<img src=x onerror=alert(1)>"}
    elements = Elements(page(document))
    assert not any(elements.of(tag) for tag in ("script", "img"))


def test_a_page_that_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    path = tmp_path / "file" / "page.html"
    answer = CliRunner().invoke(app, ["validate", "--family", "attention", "--html", str(path)])
    assert answer.exit_code != 0
    assert "cannot be written" in str(answer.exception)


def test_a_family_that_misses_without_being_expected_fails() -> None:
    good, bad = result("gemm", [1.01] * 9, [1.02] * 9), result("attention", [1.3] * 9, [1.4] * 9)
    assert regressions([good, bad], {}) == ["attention: misses its bar (30.0 % / 30.0 %; left out 40.0 % / 40.0 %)"]


def test_an_expected_miss_may_not_get_worse_nor_stay_listed_when_it_holds() -> None:
    bad = result("attention", [1.3] * 9, [1.4] * 9)
    assert regressions([bad], {"attention": (0.3, 0.3, 0.4, 0.4)}) == []
    assert "worse than expected" in regressions([bad], {"attention": (0.3, 0.3, 0.38, 0.4)})[0]
    good = result("gemm", [1.01] * 9, [1.02] * 9)
    assert "take it off" in regressions([good], {"gemm": (0.1, 0.2, 0.1, 0.2)})[0]


def test_ci_fails_where_plain_validation_only_fails_for_known_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = result("attention", [1.3] * 9, [1.4] * 9)
    monkeypatch.setattr("rpegc.validate.report.evaluate", lambda folder, wanted: [bad])
    monkeypatch.setattr("rpegc.validate.expected.expected_misses", lambda: {"attention": (0.3, 0.3, 0.4, 0.4)})
    assert CliRunner().invoke(app, ["validate"]).exit_code == 1
    assert CliRunner().invoke(app, ["validate", "--expected"]).exit_code == 0
    monkeypatch.setattr("rpegc.validate.expected.expected_misses", dict)
    assert CliRunner().invoke(app, ["validate", "--expected"]).exit_code == 1


def test_expected_misses_name_families_with_a_bar() -> None:
    assert all(FAMILIES[family].bar for family in expected_misses())


def test_the_bands_that_prices_rest_on_are_the_residuals_of_left_out_rows() -> None:
    results = evaluate(Folder(), list(BANDS))
    assert {found.family for found in results} == set(BANDS)
    for found in results:
        for stated, residual in zip(BANDS[found.family], found.band(), strict=True):
            assert math.log(stated) == pytest.approx(math.log(residual), abs=0.03), found.family


def test_prices_of_pretraining_carry_the_bands() -> None:
    bridge = framework_constants("megatron-bridge", "megatron")
    assert interval(bridge, "H100-SXM 80 GB") == BANDS["training_dense"]
    assert interval(bridge, "H100-SXM 80 GB", mixture=True) == BANDS["training_moe"]
    assert interval(bridge, "GH200 96 GB") == BANDS["training_gh200"]
    assert interval(framework_constants("llm-foundry", "fsdp"), "H200-SXM 141 GB") == BANDS["training_source"]
    low, high = interval(framework_constants("verl", "fsdp"), "H100-SXM 80 GB")
    assert low * high == pytest.approx(1.0)
