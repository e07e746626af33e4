"""Presets and the user's stages become an RPEG: who makes which value, at which distance, declared where."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rpegc.errors import InputError
from rpegc.frontend.expand import expand
from rpegc.frontend.load import pipeline_from_text
from rpegc.ir.graph import WEIGHTS, Edge, Graph, Op
from rpegc.ir.text import print_graph
from rpegc.ir.verify import verify

REFERENCE = "{config: Qwen/Qwen3-8B}\n  reference: {like: actor}"
ACTOR = "{config: Qwen/Qwen3-8B}"
CRITIC = ACTOR + "\n  critic: {like: actor}"


def graph_of(text: str) -> Graph:
    graph = expand(pipeline_from_text(text, "p.yaml"))
    verify(graph)
    return graph


def edges(graph: Graph) -> set[tuple[str, str, str, int]]:
    return {(edge.source, edge.target, edge.value, edge.distance) for edge in graph.edges}


def test_grpo(pipeline_text: str, golden: Callable[[str, str], None]) -> None:
    text = pipeline_text.replace(ACTOR, REFERENCE) + "training: {kl: {coefficient: 0.001}}\n"
    golden("frontend/grpo.rpeg", print_graph(graph_of(text)))


def test_ppo(pipeline_text: str, golden: Callable[[str, str], None]) -> None:
    text = pipeline_text.replace("algorithm: grpo", "algorithm: ppo").replace(
        ACTOR, REFERENCE + "\n  critic: {like: actor}\n  reward: {config: Qwen/Qwen3-4B}"
    )
    golden("frontend/ppo.rpeg", print_graph(graph_of(text + "training: {kl: {coefficient: 0.01, where: reward}}\n")))


def test_weights_reach_every_stage_of_a_trained_role_one_step_later(pipeline_text: str) -> None:
    text = pipeline_text.replace("algorithm: grpo", "algorithm: ppo").replace(ACTOR, CRITIC)
    weights = {edge for edge in graph_of(text).edges if edge.value == WEIGHTS}
    assert weights == {
        Edge("update_actor", "rollout", WEIGHTS, 1),
        Edge("update_actor", "old_logprobs", WEIGHTS, 1),
        Edge("update_actor", "update_actor", WEIGHTS, 1),
        Edge("update_critic", "values", WEIGHTS, 1),
        Edge("update_critic", "update_critic", WEIGHTS, 1),
    }


def test_a_penalty_in_the_loss_feeds_the_update_and_one_in_the_reward_the_advantages(pipeline_text: str) -> None:
    base = pipeline_text.replace(ACTOR, REFERENCE)
    in_loss = edges(graph_of(base + "training: {kl: {coefficient: 0.1, where: loss}}\n"))
    in_reward = edges(graph_of(base + "training: {kl: {coefficient: 0.1, where: reward}}\n"))
    assert ("reference", "update_actor", "reference_logprobs", 0) in in_loss
    assert ("reference", "advantages", "reference_logprobs", 0) in in_reward
    assert ("old_logprobs", "advantages", "old_logprobs", 0) in in_reward
    assert not any(source == "reference" and target == "update_actor" for source, target, *_ in in_reward)
    assert not any(source == "reference" and target == "advantages" for source, target, *_ in in_loss)


def test_a_reference_without_a_coefficient_is_left_to_the_passes(pipeline_text: str) -> None:
    assert graph_of(pipeline_text.replace(ACTOR, REFERENCE)).has("reference")


def test_rewards_come_from_a_program_a_model_or_both(pipeline_text: str) -> None:
    with_model = pipeline_text.replace(ACTOR, ACTOR + "\n  reward: {config: Qwen/Qwen3-4B}")
    both = graph_of(with_model)
    only_model = graph_of(with_model.replace("reward: {seconds_per_sample: 0.01}\n", ""))
    assert [e.value for e in both.into("advantages")] == ["rewards", "model_rewards"]
    assert [e.value for e in only_model.into("advantages")] == ["model_rewards"]
    assert both.stage("reward").attribute("head") == "scalar"
    assert both.stage("verify").attribute("cpu_seconds_per_sample") == 0.01


def test_stages_know_where_they_were_asked_for(pipeline_text: str) -> None:
    text = pipeline_text + "stages:\n  log: {op: function, in: [sequences]}\n"
    graph = graph_of(text)
    places = {stage.name: str(stage.position) for stage in graph.stages}
    assert places["rollout"] == "p.yaml:2:1"
    assert places["verify"] == "p.yaml:11:1"
    assert places["log"] == "p.yaml:14:3"


def test_a_users_stage_replaces_the_presets_in_its_place(pipeline_text: str) -> None:
    text = pipeline_text + (
        "stages:\n"
        "  verify: {op: function, in: [sequences], out: [rewards], cpu_seconds_per_sample: 3, workers_per_node: 8}\n"
    )
    before, after = graph_of(pipeline_text), graph_of(text)
    assert [stage.name for stage in before.stages] == [stage.name for stage in after.stages]
    assert before.edges == after.edges
    assert after.stage("verify").attributes == (("cpu_seconds_per_sample", 3.0), ("workers_per_node", 8))


def test_a_judge_that_generates_takes_the_place_of_the_verifier(pipeline_text: str) -> None:
    text = pipeline_text.replace(ACTOR, ACTOR + "\n  judge: {config: Qwen/Qwen3-14B}").replace(
        "reward: {seconds_per_sample: 0.01}\n", ""
    )
    graph = graph_of(
        text
        + "stages:\n"
        + "  ask_judge:\n    {op: generate, model: judge, in: [sequences], out: [verdicts],\n"
        + "    prompt_tokens: {mean: 900, max: 6000}, response_tokens: {mean: 200, max: 1024}}\n"
        + "  parse: {op: function, in: [verdicts], out: [rewards], cpu_seconds_per_sample: 0.001}\n"
    )
    assert graph.stage("ask_judge").op is Op.GENERATE
    assert {("rollout", "ask_judge", "sequences", 0), ("ask_judge", "parse", "verdicts", 0)} <= edges(graph)
    assert ("parse", "advantages", "rewards", 0) in edges(graph)
    assert not any(edge.value == WEIGHTS for edge in graph.into("ask_judge"))  # nobody trains the judge


def test_a_removed_stage_is_gone_with_its_values(pipeline_text: str) -> None:
    text = pipeline_text.replace(ACTOR, ACTOR + "\n  reward: {config: Qwen/Qwen3-4B}") + "stages: {verify: null}\n"
    graph = graph_of(text)
    assert not graph.has("verify")
    assert [edge.value for edge in graph.into("advantages")] == ["model_rewards"]


def test_own_weights_may_be_written_out(pipeline_text: str) -> None:
    text = pipeline_text + "stages:\n  probe: {op: forward, model: actor, in: [sequences, weights(actor)]}\n"
    assert [(e.value, e.distance) for e in graph_of(text).into("probe")] == [("sequences", 0), (WEIGHTS, 1)]


STAGES = [
    ("verify: null", "13:10", "nothing gives rewards", "add a `reward:` block"),
    ("verfy: null", "13:10", "preset `grpo` has no such stage to remove", "did you mean `verify`?"),
    (
        "old_logprobs: null",
        "13:10",
        "value `old_logprobs` is used by stage `update_actor`",
        "stage `old_logprobs` made it",
    ),
    ("x: {op: dance}", "13:18", "`stages.x.op` is the text `dance`", "allowed: forward, function, generate, train"),
    ("x: {in: [sequences]}", "13:10", "`stages.x.op` is missing", "What the stage does"),
    ("x: {op: sync}", "13:18", "`stages.x.op` is the text `sync`", "allowed: forward, function, generate, train"),
    ("x: {op: function, in: sequences}", "13:32", "the text `sequences`, but must be a list", ""),
    ("x: {op: function, in: [sequencs]}", "13:28", "no stage makes it", "did you mean `sequences`?"),
    ("x: {op: function, out: [y]}", "13:28", "value `y` of stage `x` is used by no stage", ""),
    ("x: {op: function, out: [rewards]}", "13:28", "made twice: by `verify` and by `x`", "replace `verify`"),
    ("x: {op: function, out: [prompts]}", "13:28", "it comes from the data", ""),
    ("x: {op: function, out: [weights]}", "13:28", "train stages make weights by themselves", ""),
    ("x: {op: function, in: ['weights(actor)']}", "13:28", "runs no model, so it cannot use `weights(actor)`", ""),
    ("x: {op: function, model: actor}", "13:28", "is a function, which runs no model", ""),
    ("x: {op: forward, in: [sequences]}", "13:10", "is a forward stage, which needs `model`", "actor"),
    ("x: {op: forward, model: aktor}", "13:27", "`models` does not have", "did you mean `actor`?"),
    ("x: {op: train, model: actor}", "13:25", "`update_actor` and `x` both train `actor`", ""),
    ("x: {op: function, head: logits}", "13:28", "means nothing to op function", ""),
    ("x: {op: forward, model: actor, workers_per_node: 2}", "13:41", "belongs to function", ""),
    ("x: {op: function, in: [z], out: [z]}", "13:28", "wait for each other within one step: x -> x", ""),
    ("X: {op: function}", "13:10", "`X` cannot be a name here", ""),
]


@pytest.mark.parametrize(("stages", "place", "message", "hint"), STAGES, ids=[entry[0] for entry in STAGES])
def test_a_wrong_stage_is_refused_at_its_place(
    pipeline_text: str, stages: str, place: str, message: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        pipeline_from_text(f"{pipeline_text}stages: {{{stages}}}\n", "p.yaml")
    assert message in caught.value.message
    assert str(caught.value.position) == f"p.yaml:{place}"
    assert hint in (caught.value.hint or "")


def test_a_circle_within_a_step_names_its_stages(pipeline_text: str) -> None:
    stages = (
        "stages:\n  rollout: {op: generate, model: actor, in: [prompts, advantages], "
        "out: [sequences, behaviour_logprobs]}\n"
    )
    with pytest.raises(InputError, match="rollout -> verify -> advantages -> rollout"):
        pipeline_from_text(pipeline_text + stages)


def test_two_critics_need_two_update_stages(pipeline_text: str) -> None:
    """The stage language goes beyond the presets: a second critic is a role and two stages."""
    text = pipeline_text.replace("algorithm: grpo", "algorithm: ppo").replace(
        ACTOR, CRITIC + "\n  critic_two: {like: critic}"
    )
    graph = graph_of(
        text
        + "stages:\n"
        + "  values_two: {op: forward, model: critic_two, head: scalar, in: [sequences], out: [values_two]}\n"
        + "  advantages: {op: function, in: [rewards, values, values_two], out: [advantages, returns]}\n"
        + "  update_critic_two: {op: train, model: critic_two, head: scalar, in: [sequences, values_two, returns]}\n"
    )
    assert ("update_critic_two", "values_two", WEIGHTS, 1) in edges(graph)
    assert ("advantages", "update_critic_two", "returns", 0) in edges(graph)
