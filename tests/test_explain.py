"""Why a plan, and why not another: levers add up, bottlenecks are real, each kind of condition gets its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rpegc.difference import difference
from rpegc.errors import InputError
from rpegc.explain.why import explain
from rpegc.explain.why_not import why_not
from rpegc.reasons import (
    Bottleneck,
    Decision,
    Difference,
    Explanation,
    Figure,
    Guideline,
    Load,
    Share,
    StageWorkDepth,
    Verdict,
)
from rpegc.report.answers import show_difference, show_explanation, show_verdict
from tests.plan_answers import QUICK, printed, small_plan


def test_the_cycle_carries_the_period_and_the_levers_of_a_colocated_plan_add_up_to_one() -> None:
    plan = small_plan()
    found = explain(plan)
    assert len(plan.meshes) == 1
    assert found.bottleneck.period_s == pytest.approx(plan.period_s, rel=1e-3)
    assert sum(share.lever for share in found.shares) == pytest.approx(1.0, abs=1e-6)
    assert found.loads[0].share == pytest.approx(1.0, abs=0.01)


def test_the_next_bottleneck_is_what_is_left_without_the_largest_stage() -> None:
    plan = small_plan()
    found = explain(plan).bottleneck
    assert found.largest not in found.next_cycle
    assert found.next_period_s == pytest.approx(plan.period_s - plan.stage(found.largest).seconds, abs=0.05)


def test_work_and_rate_agree_with_the_stage_seconds() -> None:
    plan = small_plan()
    for row in explain(plan).work_depth:
        if row.flop_per_s_per_gpu is not None:
            stage = plan.stage(row.stage)
            gpus = plan.mesh(stage.mesh).gpus
            assert row.flop_per_s_per_gpu * stage.seconds * gpus == pytest.approx(row.work_flop)
            assert row.flop_per_s_per_gpu < 1.0e15  # no stage beats the dense bf16 peak of a GH200


def test_a_worse_degree_gets_a_plan_and_the_terms_add_up_to_the_difference() -> None:
    verdict = why_not(small_plan(), "rollout.tp=4", QUICK)
    assert verdict.kind == "plan"
    assert verdict.plan is not None
    assert verdict.difference is not None
    layout = verdict.plan.stage("rollout").layout
    assert layout is not None
    assert layout.tp == 4
    for stage in verdict.difference.stages:
        terms = [term.change for term in verdict.difference.terms if term.name.startswith(stage.name + ".")]
        assert sum(terms) == pytest.approx(stage.change, abs=2e-3)


def test_the_condition_that_holds_already_changes_nothing() -> None:
    plan = small_plan()
    verdict = why_not(plan, f"mode={plan.graph.mode}", QUICK)
    assert verdict.kind == "plan"
    assert verdict.difference is not None
    assert verdict.difference.decisions == ()


def test_what_the_pipeline_does_not_allow_is_answered_and_said() -> None:
    verdict = why_not(small_plan(), "staleness=1", QUICK)
    assert verdict.plan is not None
    assert verdict.plan.staleness.bound == 1
    assert any("does not allow" in note and "bounded-asynchrony" in note for note in verdict.notes)


@pytest.mark.parametrize(
    ("condition", "kind", "words"),
    [
        ("update_actor.tp=16", "rule", "tp 16"),
        ("memory_fraction=0.999", "memory", "GiB"),
        ("placement=moon-base", "capability", "colocated"),
        ("staleness=40", "capability", "one-step-off 1 to 1"),
        ("rollout.nodes=7", "rule", "no stage has a layout on such a mesh"),
    ],
)
def test_a_forbidden_condition_names_what_forbids_it(condition: str, kind: str, words: str) -> None:
    verdict = why_not(small_plan(), condition, QUICK)
    assert verdict.plan is None
    assert (verdict.kind, words in verdict.reason) == (kind, True), verdict.reason


@pytest.mark.parametrize("condition", ["tp", "tp=", "warp=9", "rolout.tp=2", "nodes=x", "reuse-rollout-logprobs=maybe"])
def test_a_condition_without_sense_is_wrong_input(condition: str) -> None:
    with pytest.raises(InputError):
        why_not(small_plan(), condition, QUICK)


def test_a_plan_does_not_differ_from_itself_and_differs_from_a_slower_one() -> None:
    plan = small_plan()
    slower = replace(plan, stages=tuple(replace(s, seconds=2 * s.seconds) for s in plan.stages))
    assert difference(plan, plan).same
    assert {row.change for row in difference(plan, slower).stages} != {0.0}
    assert not difference(plan, replace(plan, period_s=2 * plan.period_s)).same


EXPLANATION = Explanation(
    "made-up",
    100.0,
    99.0,
    Bottleneck(("rollout", "update"), 100.0, "rollout", ("update",), 40.0),
    (Load("pool", 16, 100.0, 1.0, ("rollout", "update")),),
    (Share("rollout", 60.0, True, 0.6), Share("update", 40.0, True, 0.4), Share("verify", 0.1, False, 0.0)),
    (StageWorkDepth("rollout", 1e17, 4e7, 3.6e13), StageWorkDepth("verify", 0.0, 0.0, None)),
    (Guideline("ZeRO for trained models", "update: ZeRO-3 over 16", True),),
)
DIFFERENCE = Difference(
    "chosen",
    "tp=8",
    (Figure("period", "s", 100.0, 120.0), Figure("MFU", "share", 0.3, 0.25), Figure("USD a step", "USD", None, 1.5)),
    (Decision("rollout", "tp", "2", "8"), Decision("plan", "mode", "sync", "[odd]")),
    (Figure("rollout", "s", 60.0, 80.0),),
    (Figure("rollout.tail", "s", 10.0, 30.0), Figure("rollout.new", "s", None, 0.01)),
    (Figure("rollout", "bytes", 2.0**36, 2.0**35),),
)


def test_the_printed_answers_are_these(golden: Callable[[str, str], None]) -> None:
    golden("answers/explanation.txt", printed(lambda console: show_explanation(EXPLANATION, console)))
    golden("answers/difference.txt", printed(lambda console: show_difference(DIFFERENCE, console)))
    verdict = Verdict("tp=8", "plan", "20 % more", None, DIFFERENCE, ("a note",))
    golden("answers/verdict.txt", printed(lambda console: show_verdict(verdict, console)))
    refused = Verdict("tp=8", "rule", "tp 8 must lie inside a node")
    golden("answers/refusal.txt", printed(lambda console: show_verdict(refused, console)))
