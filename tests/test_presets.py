"""Presets expand to the stages, counts and losses of their papers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from preset_pipelines import preset_text

from rpegc.cost.work import WorkContext, stage_works
from rpegc.errors import InputError
from rpegc.frontend.expand import expand
from rpegc.frontend.load import pipeline_from_text, restore_pipeline
from rpegc.frontend.pipeline import Pipeline
from rpegc.frontend.presets import all_presets, preset_names
from rpegc.frontend.presets.recipe import ADVANTAGES, AGGREGATIONS, LOSS_KINDS
from rpegc.ir.graph import Graph, Op
from rpegc.ir.text import parse_graph, print_graph
from rpegc.ir.verify import verify


def pipeline_of(name: str, **keys: str) -> Pipeline:
    return pipeline_from_text(preset_text(name, **keys), "p.yaml")


def graph_of(name: str, **keys: str) -> Graph:
    graph = expand(pipeline_of(name, **keys))
    verify(graph)
    return graph


def sequences(name: str, **keys: str) -> dict[str, int]:
    """Return how many sequences each stage works on."""
    pipeline = pipeline_of(name, **keys)
    workload = pipeline.workload_facts()
    context = WorkContext(
        pipeline.architectures,
        workload.prompts_per_step,
        workload.samples_per_prompt,
        workload.minibatches_per_step,
        1,
        pipeline.prompt_lengths(),
        pipeline.response_lengths(),
        {},
        "verl",
        "fsdp",
    )
    return {stage: work.sequences for stage, work in stage_works(expand(pipeline), context).items()}


@pytest.mark.parametrize("name", preset_names())
def test_the_graph_is_as_reviewed(name: str, golden: Callable[[str, str], None]) -> None:
    text = print_graph(graph_of(name))
    golden(f"frontend/presets/{name.replace('++', '-plus-plus')}.rpeg", text)
    assert parse_graph(text) == graph_of(name)


@pytest.mark.parametrize("preset", all_presets().values(), ids=lambda preset: preset.name)
def test_a_preset_names_its_paper_and_speaks_in_known_words(preset) -> None:  # type: ignore[no-untyped-def]
    assert re.search(r"arXiv \d{4}\.\d{5}", preset.source)
    assert preset.loss.kind in LOSS_KINDS
    assert preset.loss.aggregation in AGGREGATIONS
    assert preset.loss.advantages in ADVANTAGES


def test_the_issue_s_presets_are_there() -> None:
    asked = "dapo dr-grpo rloo reinforce++ remax gspo cispo dpo online-dpo distill grpo ppo"
    assert set(asked.split()) == set(preset_names())


LOSSES = {
    # name: kind, aggregation, advantages, clip, where the KL penalty acts, its estimator
    "grpo": ("clipped", "token-mean", "group-normalised", (0.2, 0.2), "loss", "k3"),
    "dapo": ("clipped", "token-mean", "group-normalised", (0.2, 0.28), "loss", "k3"),
    "dr-grpo": ("clipped", "sequence-sum-over-longest", "group-centred", (0.2, 0.2), "loss", "k3"),
    "gspo": ("sequence-clipped", "sequence-mean", "group-normalised", (3e-4, 4e-4), "loss", "k3"),
    "cispo": ("clipped-weight", "token-mean", "group-normalised", (10.0, 0.2), "loss", "k3"),
    "rloo": ("clipped", "sequence-sum", "leave-one-out", (0.2, 0.2), "reward", "k1"),
    "reinforce++": ("clipped", "token-mean", "batch-normalised", (0.2, 0.2), "reward", "k1"),
    "remax": ("clipped", "sequence-sum", "greedy", (0.2, 0.2), "reward", "k1"),
    "ppo": ("clipped", "token-mean", "critic", (0.2, 0.2), "loss", "k3"),
    "dpo": ("preference", "sequence-sum", "none", (0.2, 0.2), "loss", "k3"),
    "online-dpo": ("preference", "sequence-sum", "none", (0.2, 0.2), "loss", "k3"),
    "distill": ("distillation", "token-mean", "none", (0.2, 0.2), "loss", "k3"),
}


@pytest.mark.parametrize("name", preset_names())
def test_the_loss_is_in_the_resolved_pipeline(name: str) -> None:
    resolved = pipeline_of(name).resolved()
    loss, training = resolved["loss"], resolved["training"]
    kl = training["kl"]
    found = (loss["kind"], loss["aggregation"], loss["advantages"], tuple(training["clip"]), kl["where"])
    assert (*found, kl["estimator"]) == LOSSES[name]
    assert restore_pipeline(resolved).resolved() == resolved


def test_what_the_user_says_about_the_loss_wins() -> None:
    training = "{clip: [0.1, 0.3], kl: {coefficient: 0.01, where: loss, estimator: k2}}"
    pipeline = pipeline_of("rloo", training=training)
    resolved = pipeline.resolved()["training"]
    assert (resolved["clip"], resolved["kl"]["where"], resolved["kl"]["estimator"]) == ([0.1, 0.3], "loss", "k2")
    assert pipeline.workload_facts().kl_where == "loss"
    assert any(edge.value == "reference_logprobs" for edge in expand(pipeline).into("update_actor"))


def workload(samples: int = 8, **more: object) -> str:
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    lengths = "prompt_tokens: {mean: 200, max: 1024}, response_tokens: {mean: 1500, max: 8192}"
    return f"{{prompts_per_step: 256, samples_per_prompt: {samples}, {lengths}{extra}}}"


def test_dapo_generates_and_judges_more_than_it_trains_on() -> None:
    found = sequences("dapo", workload=workload(oversampling=1.25))
    assert found["rollout"] == found["verify"] == found["select"] == 320 * 8
    assert found["old_logprobs"] == found["advantages"] == found["update_actor"] == 256 * 8
    assert sequences("dapo")["rollout"] == 384 * 8
    graph = graph_of("dapo")
    assert not graph.has("reference")  # no KL penalty
    assert {edge.source for edge in graph.into("old_logprobs")} == {"select", "update_actor"}


def test_dapo_punishes_the_last_fifth_unless_told_otherwise() -> None:
    reward = '{{function: "a.py:b", overlong: {{buffer_tokens: {}, penalty: {}}}}}'
    tokens = [
        pipeline_of("dapo").resolved()["loss"]["overlong_buffer_tokens"],
        pipeline_of("dapo", reward=reward.format(500, 0.5)).resolved()["loss"]["overlong_buffer_tokens"],
        pipeline_of("dapo", reward=reward.format(500, 0)).resolved()["loss"]["overlong_buffer_tokens"],
        pipeline_of("grpo").resolved()["loss"]["overlong_buffer_tokens"],
    ]
    assert tokens == [int(0.2 * 8192), 500, 0, 0]


def test_remax_generates_and_judges_a_greedy_response_more() -> None:
    found = sequences("remax", workload=workload(samples=4))
    assert found["rollout"] == found["verify"] == 256 * 5
    assert found["old_logprobs"] == found["update_actor"] == 256 * 4


def test_dpo_generates_nothing_and_online_dpo_learns_from_two_of_n() -> None:
    offline = graph_of("dpo")
    assert not offline.of_op(Op.GENERATE)
    assert [stage.name for stage in offline.stages] == ["reference", "update_actor"]
    found = sequences("online-dpo")
    assert found["rollout"] == found["verify"] == 256 * 8
    assert found["reference"] == found["update_actor"] == 256 * 2


def test_a_teacher_judges_with_or_without_rewards() -> None:
    without = graph_of("distill")
    assert {edge.value for edge in without.into("advantages")} == {"old_logprobs", "teacher_logprobs"}
    reward = graph_of("distill", reward='{function: "a.py:b"}')
    assert {edge.value for edge in reward.into("advantages")} == {"old_logprobs", "teacher_logprobs", "rewards"}


def test_a_users_stage_works_on_all_that_was_generated() -> None:
    stages = "{verify: {op: function, in: [sequences], out: [rewards], cpu_seconds_per_sample: 1}}"
    assert sequences("dapo", stages=stages)["verify"] == 384 * 8


def test_a_users_stage_reads_the_greedy_responses_only_if_it_says_so() -> None:
    probe = "{{probe: {{op: forward, model: actor, in: [{}]}}}}"
    one = sequences("remax", workload=workload(samples=4), stages=probe.format("sequences"))
    both = sequences("remax", workload=workload(samples=4), stages=probe.format("sequences, greedy_sequences"))
    assert (one["probe"], both["probe"]) == (256 * 4, 256 * 5)


REFUSED = {
    "a group of one": ("rloo", {"workload": workload(samples=1)}, "rloo compares the samples of one prompt", ""),
    "pairs of four": ("dpo", {"workload": workload(samples=4)}, "must be 2, is 4", "chosen and a rejected"),
    "pairs without beta": ("dpo", {"training": "{}"}, "dpo needs training.kl.coefficient", "0.1"),
    "beta in the reward": (
        "online-dpo",
        {"training": "{kl: {coefficient: 0.1, where: reward}}"},
        "training.kl.where cannot be `reward`",
        "",
    ),
    "no reference": ("dpo", {"models": "{actor: {config: Qwen/Qwen3-4B}}"}, "dpo needs `models.reference`", "like"),
    "no teacher": ("distill", {"models": "{actor: {config: Qwen/Qwen3-4B}}"}, "distill needs `models.teacher`", ""),
    "a judge of given pairs": ("dpo", {"reward": "{}"}, "a `reward` block is of no use", "online-dpo"),
    "a model for given pairs": (
        "dpo",
        {"models": "{actor: {config: Qwen/Qwen3-4B}, reference: {like: actor}, reward: {like: actor}}"},
        "`models.reward` is used by no stage of dpo",
        "",
    ),
    "more than is trained on": ("grpo", {"workload": workload(oversampling=1.5)}, "means nothing to grpo", "use dapo"),
    "less than is trained on": ("dapo", {"workload": workload(oversampling=0.5)}, "must be at least 1", ""),
    "a buffer beyond the end": (
        "dapo",
        {"reward": "{overlong: {buffer_tokens: 9000}}"},
        "at most the longest response: 9000 > 8192",
        "",
    ),
    "no way to select": ("dapo", {"stages": "{select: null}"}, "value `selected` is used", "made it"),
    "nothing to rank by": ("online-dpo", {"stages": "{verify: null}"}, "nothing gives rewards", "reward"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_algorithm_cannot_be_is_refused(case: str) -> None:
    name, keys, message, hint = REFUSED[case]
    with pytest.raises(InputError) as caught:
        pipeline_of(name, **keys)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.position is not None


def test_a_clip_of_weights_may_leave_the_lower_side_open() -> None:
    assert pipeline_of("cispo", training="{clip: [10, 4]}").resolved()["training"]["clip"] == [10.0, 4.0]
    with pytest.raises(InputError, match="low <= high"):
        pipeline_of("dapo", training="{clip: [10, 4]}")


def test_a_stage_reads_its_counts_from_its_attributes() -> None:
    graph = graph_of("grpo")
    rollout = graph.stage("rollout").with_attributes(oversampling=1.5, samples_per_prompt=3)
    changed = replace(graph, stages=tuple(rollout if s.name == "rollout" else s for s in graph.stages))
    assert parse_graph(print_graph(changed)) == changed
