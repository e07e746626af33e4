"""The examples of the stage language compile, and what they state is priced."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from anywhere import CAPABILITIES, Anywhere
from preset_pipelines import preset_text

import backends
from rpegc.compiler import Options, compile_pipeline, plan_files, setting_of
from rpegc.cost.generation import price_generation
from rpegc.cost.table import PriceTable
from rpegc.cost.work import StageWork, stage_works
from rpegc.errors import InputError
from rpegc.frontend.expand import expand
from rpegc.frontend.load import load_pipeline, pipeline_from_text
from rpegc.frontend.pipeline import Pipeline
from rpegc.ir.text import print_graph
from rpegc.ir.verify import verify
from rpegc.lengths import Lengths
from rpegc.plan import Plan, plan_from_document
from rpegc.simulate import simulate
from rpegc.target import EngineLayout, MeshClass, columns_of

FOLDER = Path(__file__).parent.parent / "examples" / "stages"
EXAMPLES = tuple(sorted(FOLDER.glob("*.yaml")))
QUICK = Options(space="quick", tolerance=0.05)
REAL = backends.backend


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand a target that can place everything in for those that cannot."""
    monkeypatch.setattr(backends, "backend", lambda name: REAL(name) if name == "verl" else Anywhere())


@cache
def plan_of(path: Path) -> Plan:
    return compile_pipeline(load_pipeline(path), QUICK)


def works(pipeline: Pipeline) -> dict[str, StageWork]:
    return stage_works(expand(pipeline), setting_of(pipeline, QUICK).work)


def test_the_issue_s_examples_are_there() -> None:
    asked = {"ppo_sizes", "verifier_and_reward_model", "two_reward_models", "judge", "process_rewards", "tools"}
    assert {path.stem for path in EXAMPLES} == asked


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_graph_is_as_reviewed(path: Path, golden: Callable[[str, str], None]) -> None:
    graph = expand(load_pipeline(path))
    verify(graph)
    golden(f"frontend/stages/{path.stem}.rpeg", print_graph(graph))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_compiles(path: Path) -> None:
    plan = plan_of(path)
    assert {stage.name for stage in expand(load_pipeline(path)).stages} <= {stage.name for stage in plan.stages} | {
        "reference"
    }
    assert plan.period_s >= plan.lower_bound_s > 0
    assert simulate(plan, steps=3, warm_up=1).mean_s > 0
    assert plan_from_document(json.loads(plan.to_json()), "plan.json").to_json() == plan.to_json()


def test_verl_takes_the_sizes_and_refuses_the_rest() -> None:
    pipeline = load_pipeline(FOLDER / "ppo_sizes.yaml")
    files = plan_files(plan_of(FOLDER / "ppo_sizes.yaml"), setting_of(pipeline, QUICK))
    assert "critic.model.path=/models/critic-4b" in files["launch/verl_overrides.txt"].content.decode()
    for path in EXAMPLES:
        text = path.read_text().replace("target: native", "target: verl")
        if path.stem != "ppo_sizes":
            with pytest.raises(InputError, match="verl"):
                setting_of(pipeline_from_text(text, path.name), QUICK)


@pytest.mark.parametrize("name", ["dpo", "online-dpo"])
def test_presets_that_verl_lacks_compile_elsewhere(name: str) -> None:
    plan = compile_pipeline(pipeline_from_text(preset_text(name, target="native")), QUICK)
    assert plan.period_s > 0
    assert (plan.graph.has("rollout"), plan.staleness.bound) == (name != "dpo", 0)
    assert simulate(plan, steps=3, warm_up=1).mean_s > 0


def test_a_judge_has_its_own_counts_and_lengths() -> None:
    found = works(load_pipeline(FOLDER / "judge.yaml"))
    judge, rollout = found["ask_judge"], found["rollout"]
    assert (judge.prompts, judge.samples_per_prompt) == (128 * 8, 1)
    assert judge.response_tokens.max == 2048
    assert judge.prompt_tokens.mean == pytest.approx(2200, rel=1e-3)
    assert (rollout.prompts, rollout.response_tokens.max) == (128, 8192)
    assert found["parse"].sequences == 128 * 8


def test_a_judge_s_seconds_follow_its_own_lengths_alone() -> None:
    text = (FOLDER / "judge.yaml").read_text()
    longer = text.replace("{mean: 400, p99: 1500, max: 2048}", "{mean: 800, p99: 1900, max: 2048}")
    tables = [generation(works(pipeline_from_text(one))["ask_judge"]) for one in (text, longer)]
    assert tables[1].seconds[0] > 1.1 * tables[0].seconds[0]
    both = [generation(works(pipeline_from_text(one))["rollout"]).seconds[0] for one in (text, longer)]
    assert both[0] == both[1]


LAYOUT = EngineLayout(replicas=16, max_sequences=64, memory_fraction=0.8)
MESH = MeshClass(4, 4)


def generation(work: StageWork) -> PriceTable:
    machine = load_pipeline(FOLDER / "judge.yaml").machine
    return price_generation(work, MESH, columns_of([LAYOUT], MESH), machine)


def term(table: PriceTable, name: str) -> float:
    return next(float(term.seconds[0]) for term in table.times if term.name == name)


def test_turns_cost_waits_and_reading_and_save_decoding() -> None:
    work = works(load_pipeline(FOLDER / "tools.yaml"))["rollout"]
    assert (work.turns, work.turn_cpu_seconds, work.turn_workers_per_node) == (6, 1.5, 48)
    single = replace(work, turns=1, observation_tokens=0.0)
    several, alone = generation(work), generation(single)
    assert work.generated_tokens.mean == pytest.approx(4000 - 5 * 150, rel=0.01)
    assert term(several, "weights_read") < term(alone, "weights_read")
    assert term(several, "environment") == pytest.approx(5 * 1.5)  # enough workers: only a sample's own waits show
    assert term(several, "observations") > 0
    assert {"environment", "observations"}.isdisjoint(time.name for time in alone.times)
    assert several.completion[0, -1] == pytest.approx(several.seconds[0])


def test_too_few_workers_hold_everybody_up() -> None:
    work = replace(works(load_pipeline(FOLDER / "tools.yaml"))["rollout"], turn_workers_per_node=1)
    total = work.sequences * 5 * 1.5 / MESH.nodes
    table = generation(work)
    assert table.seconds[0] >= total
    assert table.seconds[0] == pytest.approx(total + 5 * 1.5 + term(table, "observations"), rel=1e-6)


def test_scaled_lengths_keep_their_shape() -> None:
    lengths = Lengths.from_mean_p99(4000, 14000, 16384)
    half = lengths.scaled(0.5)
    assert half.mean == pytest.approx(lengths.mean / 2, rel=1e-3)
    assert half.max == 8192
    counted = Lengths.from_histogram([(10, 1), (20, 1), (21, 2)], 100).scaled(0.5)
    assert (counted.counts, sum(counted.shares)) == ((5, 10), 1.0)


ROLLOUT = "rollout: {op: generate, model: actor, in: [prompts], out: [sequences, behaviour_logprobs]"
TOOLS = "tools: {op: function, in: [sequences], out: [rewards]}"
JUDGE = "j: {op: generate, model: actor, in: [sequences], out: [rewards]"
REFUSED = {
    "turns that nobody answers": (f"{ROLLOUT}, turns: 3}}, {TOOLS}", "3 turns, and no `environment`"),
    "an environment that is not there": (
        f"{ROLLOUT}, turns: 3, environment: tool}}, {TOOLS}",
        "no function stage `tool`",
    ),
    "an environment of one turn": (f"{ROLLOUT}, environment: tools}}, {TOOLS}", "`environment`, but one turn only"),
    "nothing left to generate": (
        f"{ROLLOUT}, turns: 3, environment: tools, observation_tokens: 800}}, {TOOLS}",
        "adds 2 x 800 = 1600 tokens, but a response has 1500",
    ),
    "a judge without lengths": (f"{JUDGE}}}", "so that its lengths are its own"),
    "half of the lengths": (f"{ROLLOUT}, prompt_tokens: {{fixed: 5}}}}, {TOOLS}", "`prompt_tokens` without"),
    "no form of lengths": (
        f"{JUDGE}, prompt_tokens: {{mean: 5}}, response_tokens: {{fixed: 5}}}}",
        "`prompt_tokens` of stage `j` gives mean",
    ),
    "lengths that no distribution has": (
        f"{JUDGE}, prompt_tokens: {{mean: 50, max: 5}}, response_tokens: {{fixed: 5}}}}",
        "mean <= max must hold",
    ),
    "beyond the model's positions": (
        f"{JUDGE}, prompt_tokens: {{fixed: 40000}}, response_tokens: {{fixed: 5000}}}}",
        "must be at most the positions of `actor` (Qwen/Qwen3-4B): 45000 > 40960",
    ),
    "turns of a function": ("tools: {op: function, in: [sequences], out: [rewards], turns: 2}", "means nothing to op"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_stage_cannot_have_is_refused(case: str) -> None:
    stages, message = REFUSED[case]
    text = preset_text("grpo", stages=f"{{{stages}}}").replace("reward: {function", "# {function")
    with pytest.raises(InputError) as caught:
        pipeline_from_text(text, "p.yaml")
    assert message in caught.value.message
    assert caught.value.position is not None


def test_the_stand_in_knows_the_passes_that_it_names() -> None:
    import passes

    assert {rewrite.name for rewrite in passes.default_passes()} >= CAPABILITIES.structures
