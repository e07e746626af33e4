"""Generation against published rows: the families hold their bars, GH200 among them, and each term earns its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rpegc.cost import decode
from rpegc.cost.engines import ROUTING_EXPONENT, VLLM
from rpegc.hardware import Figure, load_machine
from rpegc.validate.families import FamilyResult
from rpegc.validate.generation_fit import generation_problem
from rpegc.validate.generation_rows import GenerationCase, offline_cases, serving_cases, serving_seconds
from rpegc.validate.report import validate
from rpegc.validate.table import Folder


@pytest.fixture(scope="module")
def serving() -> list[GenerationCase]:
    return [case for case in serving_cases(Folder())[0] if not case.doubtful]


def figures(problem_cases: list[GenerationCase], offline: bool = False) -> tuple[float, float]:
    problem = generation_problem(problem_cases, offline)
    error = np.abs(problem.predict({}, problem.everything) / problem.measured - 1.0)
    return float(np.median(error)), float(np.quantile(error, 0.9))


def family(name: str) -> FamilyResult:
    (result,) = validate(None, name)
    return result


def test_decode_time_holds_its_bars_on_models_left_out() -> None:
    for name in ("decode_time", "decode_time_all"):
        result = family(name)
        assert len(result.row_ids) > 900
        assert result.holds


def test_offline_generation_is_near_its_bar_and_gh200_within_it() -> None:
    result = family("offline")
    assert len(result.row_ids) > 400
    median, p90 = result.figures(result.left_out)
    assert median < 0.06
    assert p90 < 0.17
    grace = [case for case in offline_cases(Folder())[0] if case.gpu == "gh200-alps"]
    assert len(grace) >= 20
    assert figures(grace, offline=True)[0] < 0.07


def test_rows_that_cannot_be_what_ran_are_named_and_put_back_in_the_second_family() -> None:
    reasons = {skipped.reason for skipped in family("decode_time").skipped}
    for words in ("queues", "speculative", "mislabelled", "do not fit", "prefix cache"):
        assert any(words in reason for reason in reasons), words
    assert len(family("decode_time_all").row_ids) > len(family("decode_time").row_ids) + 50


def test_without_a_term_published_mixtures_are_priced_worse(
    serving: list[GenerationCase], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixtures = [case for case in serving if case.architecture.experts and case.engine == "tensorrt-llm"]
    assert len(mixtures) > 50
    with_it = figures(mixtures)
    monkeypatch.setattr(decode, "ROUTING_EXPONENT", Figure(40.0, "assumed", "every expert is read at each step"))
    assert figures(mixtures)[1] > 1.2 * with_it[1]
    monkeypatch.setattr(decode, "ROUTING_EXPONENT", ROUTING_EXPONENT)
    assert figures(mixtures) == with_it


def test_host_time_hides_behind_the_gpu_and_shows_where_the_gpu_is_quick(serving: list[GenerationCase]) -> None:
    machine = load_machine("h100-dgx")
    slow_host = replace(VLLM, sequence_s=replace(VLLM.sequence_s, value=2.0 * VLLM.sequence_s.value))
    dense = [case for case in serving if case.model == "qwen3-32b" and case.engine == "vllm"]
    one = min(dense, key=lambda case: (case.tp, -case.batch))
    eight = max(dense, key=lambda case: (case.tp, case.batch))
    for case, least, most in ((one, 1.0, 1.05), (eight, 1.03, 2.0)):
        ratio = serving_seconds([case], machine, slow_host) / serving_seconds([case], machine, VLLM)
        assert least <= ratio[0] < most
