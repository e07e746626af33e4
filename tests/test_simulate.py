"""A simulated run obeys the plan's waits, repeats its period where nothing varies, and shows what drawn lengths do."""

from __future__ import annotations

import copy
import json
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from example_plans import EXAMPLES, example, example_files, separate_rollout
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc import cli
from rpegc.errors import InputError
from rpegc.frontend.load import pipeline_from_text
from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.ir.period import period
from rpegc.plan import Plan, PlannedStage
from rpegc.report.trace import SHOWN_STEPS, chrome_trace
from rpegc.simulate import HOST, Trace, simulate
from rpegc.simulate.draws import resolved_lengths
from rpegc.target import Mesh


@pytest.fixture(scope="module", params=[*EXAMPLES, None], ids=lambda path: path.stem if path else "one-step-off")
def plan(request: pytest.FixtureRequest) -> Plan:
    return example(request.param) if request.param else separate_rollout()[0]


@pytest.fixture(scope="module")
def grpo() -> Plan:
    return example(next(path for path in EXAMPLES if path.stem == "grpo_qwen3_8b"))


def with_responses(plan: Plan, **given: object) -> Plan:
    """Return the plan with other response lengths in its pipeline; its prices stay."""
    pipeline = copy.deepcopy(plan.pipeline)
    none = dict.fromkeys(("fixed", "mean", "p99", "max", "histogram"))
    pipeline["workload"]["response_tokens"] = none | given
    return replace(plan, pipeline=pipeline)


def seconds_of(trace: Trace, stage: str) -> dict[int, float]:
    return {span.step: span.end_s - span.start_s for span in trace.spans if span.stage == stage}


# --- nothing varies: the plan's own period ----------------------------------------------------------------------------


def test_with_the_planned_seconds_the_period_is_the_planned_one(plan: Plan) -> None:
    trace = simulate(plan, sampled=False)
    assert trace.mean_s == pytest.approx(plan.period_s, rel=0.005)
    assert trace.p90_s - trace.p10_s <= 0.005 * plan.period_s


def test_fixed_lengths_leave_every_stage_as_planned(grpo: Plan) -> None:
    fixed = with_responses(grpo, fixed=3000)
    fixed.pipeline["workload"]["prompt_tokens"] = dict.fromkeys(("mean", "p99", "max", "histogram")) | {"fixed": 120}
    drawn, planned = simulate(fixed), simulate(fixed, sampled=False)
    assert drawn.mean_s == pytest.approx(planned.mean_s, rel=1e-9)
    assert simulate(grpo).p90_s > drawn.p90_s * 1.005


GPU_MESHES = (Mesh("pool", 0, 2, 0, 4), Mesh("left", 0, 1, 0, 4), Mesh("right", 1, 1, 0, 4))
UNIT_MS = 2520  # cycle ratios over up to ten steps stay whole milliseconds, as the solver's starts are


@st.composite
def random_graphs(draw: st.DrawFn) -> tuple[Graph, dict[str, int], dict[str, str]]:
    """A ring of stages with further edges, some streamed; each stage on one of three meshes or on the host."""
    count = draw(st.integers(2, 5))
    names = [f"s{number}" for number in range(count)]
    homes = draw(st.lists(st.sampled_from(["pool", "left", "right", HOST]), min_size=count, max_size=count))
    ops = [Op.FORWARD if home else Op.FUNCTION for home in homes]
    chunks = st.sampled_from([1, 1, 2, 3])
    edges = [Edge(u, v, f"{u}{v}", 0, draw(chunks)) for u, v in pairwise(names)]
    edges.append(Edge(names[-1], names[0], "back", draw(st.integers(1, 3))))
    for first, second, ahead in draw(
        st.lists(st.tuples(*[st.integers(0, count - 1)] * 2, st.integers(0, 2)), max_size=3)
    ):
        distance = ahead if first < second else ahead + 1
        edges.append(Edge(names[first], names[second], f"more{len(edges)}", distance))
    seconds = {name: UNIT_MS * draw(st.integers(1, 9)) for name in names}
    stages = tuple(Stage(name, op, "model") for name, op in zip(names, ops, strict=True))
    return Graph("random", stages, tuple(edges)), seconds, dict(zip(names, homes, strict=True))


def bound(base: Plan, graph: Graph, milliseconds: dict[str, int], homes: dict[str, str]) -> Plan:
    """Return a plan of a graph whose starts are those of its least period, by the other code."""
    groups = [[n for n, home in homes.items() if home in ("pool", side)] for side in ("left", "right")]
    best = period(graph, milliseconds, [*groups, [n for n, home in homes.items() if home == HOST]])
    earliest = min(best.starts.values())
    stages = tuple(
        PlannedStage(
            stage.name, stage.op.value, stage.model, homes[stage.name], None,
            float(best.starts[stage.name] - earliest) / 1000, milliseconds[stage.name] / 1000, (1.0, 1.0), {},
        )
        for stage in graph.stages
    )  # fmt: skip
    return replace(base, graph=graph, stages=stages, meshes=GPU_MESHES, period_s=float(best.period) / 1000)


@given(case=random_graphs())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_random_graphs_run_at_their_least_period(case: tuple[Graph, dict[str, int], dict[str, str]]) -> None:
    plan = bound(example(EXAMPLES[0]), *case)
    trace = simulate(plan, sampled=False)
    assert trace.mean_s == pytest.approx(plan.period_s, rel=0.005)
    assert_waits_hold(plan, trace)


# --- every run obeys what the plan says -------------------------------------------------------------------------------


def assert_waits_hold(plan: Plan, trace: Trace) -> None:
    """Check edges and exclusion on the spans alone."""
    when = {(span.stage, span.step): span for span in trace.spans}
    for edge in plan.graph.edges:
        for (stage, step), target in when.items():
            source = when.get((edge.source, step - edge.distance))
            if stage != edge.target or source is None:
                continue
            parts = edge.chunks
            first_part = source.start_s + (source.end_s - source.start_s) / parts
            last_part_starts = target.start_s + (target.end_s - target.start_s) * (parts - 1) / parts
            assert target.start_s >= first_part - 1e-6
            assert last_part_starts >= source.end_s - 1e-6
    rows: dict[str, list[Any]] = defaultdict(list)
    for span in trace.spans:
        for mesh in plan.meshes:
            if span.mesh and mesh.gpus < 8 and plan.mesh(span.mesh).overlaps(mesh):
                rows[mesh.name].append(span)
        rows[span.mesh].append(span)
    for spans in rows.values():
        ordered = sorted({(span.start_s, span.end_s, span.stage, span.step) for span in spans})
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(ordered))


def test_drawn_runs_obey_edges_and_exclusion(plan: Plan) -> None:
    assert_waits_hold(plan, simulate(plan, steps=30, seed=3))


def test_a_run_repeats_with_its_seed_and_does_not_depend_on_its_length(grpo: Plan) -> None:
    assert simulate(grpo, seed=5) == simulate(grpo, seed=5)
    assert simulate(grpo, seed=5).mean_s != simulate(grpo, seed=6).mean_s
    short, long = simulate(grpo, steps=4), simulate(grpo, steps=12)
    shared = {(span.stage, span.step): span for span in short.spans if span.step < 9}
    assert shared.items() <= {(span.stage, span.step): span for span in long.spans}.items()


def test_figures_of_a_run_are_consistent(plan: Plan) -> None:
    trace = simulate(plan, steps=40)
    assert trace.p10_s <= trace.mean_s <= trace.p90_s
    assert trace.mean_s == pytest.approx(plan.period_s, rel=0.05)
    assert sum(trace.critical_share.values()) == pytest.approx(1.0, abs=1e-6)
    assert set(trace.utilisation) == {mesh.name for mesh in plan.meshes}
    assert 0.9 < max(trace.utilisation.values()) <= 1.0 + 1e-9
    assert trace.staleness == {plan.staleness.bound: 40}
    with pytest.raises(ValueError, match="steps >= 1"):
        simulate(plan, steps=0)


def test_a_mesh_is_busy_while_a_mesh_around_it_or_inside_it_is() -> None:
    """Three seconds on the pool, then one on its left half: the right half rests for that one."""
    graph = Graph(
        "nested",
        (Stage("whole", Op.FORWARD, "model"), Stage("half", Op.FORWARD, "model")),
        (Edge("whole", "half", "x"), Edge("half", "whole", "y", 1)),
    )
    plan = bound(example(EXAMPLES[0]), graph, {"whole": 3000, "half": 1000}, {"whole": "pool", "half": "left"})
    trace = simulate(plan, sampled=False)
    assert trace.mean_s == pytest.approx(4)
    assert trace.utilisation == pytest.approx({"pool": 1.0, "left": 1.0, "right": 0.75})
    assert trace.critical_share == pytest.approx({"whole": 0.75, "half": 0.25})
    assert trace.staleness == {}


def test_a_plan_whose_starts_contradict_its_graph_is_refused(grpo: Plan) -> None:
    late = tuple(replace(s, start_s=s.start_s + 9 * grpo.period_s * (s.name == "rollout")) for s in grpo.stages)
    with pytest.raises(InputError, match="contradict"):
        simulate(replace(grpo, stages=late))


# --- what drawn lengths change ----------------------------------------------------------------------------------------


def test_lengths_change_generation_and_passes_but_not_syncs_and_functions(grpo: Plan) -> None:
    trace = simulate(grpo)
    for stage in grpo.stages:
        varies = len({round(seconds, 9) for step, seconds in seconds_of(trace, stage.name).items() if step >= 0}) > 1
        assert varies == (stage.op in (Op.GENERATE, Op.TRAIN, Op.FORWARD)), stage.name


def test_the_optimizer_takes_as_long_however_many_tokens_a_step_has(grpo: Plan) -> None:
    update = grpo.stage("update_actor")
    term = replace(update.terms["optimizer"], seconds=update.seconds)
    only = replace(update, terms={"optimizer": term})
    stages = tuple(only if stage.name == only.name else stage for stage in grpo.stages)
    drawn = seconds_of(simulate(replace(grpo, stages=stages)), "update_actor")
    assert list(drawn.values()) == pytest.approx([update.seconds] * len(drawn))


def test_terms_follow_the_drawn_mean_and_the_tail_the_longest(grpo: Plan) -> None:
    """Prices of 120 + 3000 tokens, responses drawn from a distribution of the mean 3000 but two lengths only."""
    bimodal = with_responses(grpo, histogram="lengths.csv", max=16384)
    bimodal.pipeline["histograms"] = {"response_tokens": [[1000, 1], [5000, 1]]}
    trace = simulate(bimodal, steps=60)
    update, rollout = seconds_of(trace, "update_actor"), seconds_of(trace, "rollout")
    planned = grpo.stage("update_actor")
    assert sum(update.values()) / len(update) == pytest.approx(planned.seconds, rel=0.02)
    # The longest response is the same in every step: what is left to vary follows the mean alone.
    steps = sorted(rollout)
    once = sum(planned.terms[name].seconds for name in ("fixed", "optimizer", "offload_optimizer"))
    tokens = [(update[step] - once) / (planned.seconds - once) * 3120 for step in steps]
    terms = grpo.stage("rollout").terms
    body = sum(term.seconds for name, term in terms.items() if name not in ("tail", "prefill"))
    for step, count in zip(steps, tokens, strict=True):
        expected = terms["tail"].seconds + body * (count - 120) / 3000
        assert rollout[step] == pytest.approx(expected, abs=0.03 * body)


def test_wider_lengths_spread_the_steps_more(grpo: Plan) -> None:
    spreads = []
    for p99 in (6000, 9000, 12000):
        trace = simulate(with_responses(grpo, mean=3000, p99=p99, max=32768), steps=60)
        spreads.append(trace.p90_s - trace.p10_s)
    assert spreads == sorted(spreads)
    assert spreads[0] > 0


FORMS = ["{fixed: 700}", "{mean: 800, max: 4096}", "{mean: 800, p99: 3000, max: 4096}"]


@pytest.mark.parametrize("form", FORMS)
def test_lengths_of_a_plan_are_those_that_it_was_priced_with(pipeline_text: str, form: str) -> None:
    pipeline = pipeline_from_text(pipeline_text.replace("{mean: 1000, p99: 4000, max: 8192}", form))
    assert resolved_lengths(pipeline.resolved()["workload"]["response_tokens"], ()) == pipeline.response_lengths()


# --- what the user sees -----------------------------------------------------------------------------------------------


def test_the_plan_holds_the_simulated_figures(plan: Plan) -> None:
    assert plan.simulation is not None
    assert plan.simulated_period_s == plan.simulation.mean_s
    trace = simulate(plan, steps=plan.simulation.steps, seed=plan.seed)
    assert (trace.mean_s, dict(trace.utilisation)) == (plan.simulation.mean_s, plan.simulation.utilisation)


def test_the_trace_has_a_row_a_mesh_and_one_for_the_host(plan: Plan) -> None:
    events = json.loads(chrome_trace(plan, simulate(plan, SHOWN_STEPS)))["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(rows.values()) == [*(f"{mesh.name} {mesh.mesh_class}" for mesh in plan.meshes), "host"]
    spans = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in spans) == 0
    for stage in plan.stages:
        own = [event for event in spans if event["name"] == stage.name]
        places = {rows[event["tid"]].split()[0] for event in own}
        if stage.op == Op.SYNC:
            assert places == {mesh.name for mesh in plan.meshes}
        else:
            assert places == {stage.mesh or "host"}
        assert len(own) == SHOWN_STEPS * len(places)
        assert {event["args"]["step"] for event in own} == set(range(5, 5 + SHOWN_STEPS))


def test_names_cannot_break_out_of_the_trace(grpo: Plan) -> None:
    hostile = replace(grpo, name='a"}],\n</script>\u2028')
    text = chrome_trace(hostile, simulate(hostile, SHOWN_STEPS))
    assert json.loads(text)["traceEvents"][0]["args"]["name"] == hostile.name
    assert text.isascii()


def test_inspect_writes_the_trace_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = example_files(EXAMPLES[1])
    (tmp_path / "plan.json").write_bytes(files["plan.json"].content)
    written = tmp_path / "mine.json"
    monkeypatch.setattr(sys, "argv", ["rpegc", "inspect", str(tmp_path), "--trace", str(written)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert written.read_bytes() == files["trace.json"].content
    assert "drawn lengths" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["rpegc", "inspect", str(tmp_path), "--trace", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "cannot be written" in capsys.readouterr().err
