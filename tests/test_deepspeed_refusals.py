"""What TRL cannot express is refused at its line before the search, naming the targets that can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backends import backend
from rpegc.cli import app
from rpegc.compiler import Options, compile_pipeline, plan_files, setting_of, structures
from rpegc.errors import InputError
from rpegc.frontend.load import pipeline_from_text

GRPO = """
name: grpo
algorithm: grpo
models:
  actor: {config: Qwen/Qwen3-8B, weights: /models/Qwen3-8B}
  reference: {like: actor}
workload:
  prompts_per_step: 64
  samples_per_prompt: 16
  prompt_tokens: {mean: 200, max: 512}
  response_tokens: {mean: 1500, p99: 5500, max: 8192}
  minibatches_per_step: 2
data: {train: /data/train.parquet}
training: {learning_rate: 1.0e-6, kl: {coefficient: 0.001}, total_steps: 100}
reward: {function: "reward.py:score"}
cluster: {hardware: gh200-alps, nodes: 2}
target: deepspeed
"""
PPO = GRPO.replace("algorithm: grpo", "algorithm: ppo").replace("  reference:", "  critic: {like: actor}\n  reference:")

CASES: dict[str, tuple[str, str, str, str, str]] = {
    "a critic": (PPO, "", "", "algorithm: ppo", "has no critic"),
    "a penalty in the reward": (
        GRPO,
        "{coefficient: 0.001}",
        "{coefficient: 0.001, where: reward}",
        "training:",
        "loss",
    ),
    "another estimator": (
        GRPO,
        "{coefficient: 0.001}",
        "{coefficient: 0.001, estimator: k1}",
        "training:",
        "k3, not k1",
    ),
    "a reward model": (
        GRPO.replace('reward: {function: "reward.py:score"}\n', ""),
        "  reference:",
        "  reward: {config: Qwen/Qwen3-8B}\n  reference:",
        "  reward: {config",
        "in one batch",
    ),
    "a reference of another model": (
        GRPO,
        "{like: actor}",
        "{config: Qwen/Qwen3-4B, weights: /models/Qwen3-4B}",
        "  reference: {config",
        "Qwen3-4B",
    ),
    "a stage of another model": (
        GRPO,
        "target: deepspeed",
        "target: deepspeed\nstages: {verify: {op: function, in: [sequences], out: [judgements]}}",
        "stages:",
        "judgements",
    ),
    "an owned key": (
        GRPO,
        "target: deepspeed",
        "target: deepspeed\ntarget_overrides: {grpo.beta: 0.1}",
        "target_overrides",
        "decided by training.kl.coefficient",
    ),
    "an owned key of DeepSpeed": (
        GRPO,
        "target: deepspeed",
        "target: deepspeed\ntarget_overrides: {deepspeed.zero_optimization.stage: 1}",
        "target_overrides",
        "the planner",
    ),
    "a key that DeepSpeed would pass over": (
        GRPO,
        "target: deepspeed",
        "target: deepspeed\ntarget_overrides: {deepspeed.gradient_cliping: 1.0}",
        "target_overrides",
        "nothing reads deepspeed.gradient_cliping",
    ),
    "a key that nothing reads": (
        GRPO,
        "target: deepspeed",
        "target: deepspeed\ntarget_overrides: {grpo.topp: 0.9}",
        "target_overrides",
        "did you mean `grpo.top_p`",
    ),
    "a key without its part": (
        GRPO,
        "target: deepspeed",
        "target: deepspeed\ntarget_overrides: {top_p: 0.9}",
        "target_overrides",
        "did you mean `grpo.top_p`",
    ),
    "two kinds of machine": (
        GRPO,
        "cluster: {hardware: gh200-alps, nodes: 2}",
        "cluster: {pools: {train: {hardware: gh200-alps, nodes: 2}, rollout: {hardware: h100-dgx, nodes: 2}}}",
        "cluster:",
        "one kind of node",
    ),
    "another training engine": (
        GRPO,
        "target: deepspeed",
        "target: deepspeed\nengine: megatron",
        "engine",
        "one training engine, DeepSpeed",
    ),
    "samples of a stage's own": (
        GRPO,
        "target: deepspeed",
        "target: deepspeed\nstages: {rollout: {op: generate, model: actor, in: [prompts], "
        "out: [sequences, behaviour_logprobs], samples_per_prompt: 4}}",
        "stages:",
        "in one turn",
    ),
    "a punishment of long responses": (
        GRPO,
        "reward: {",
        "reward: {overlong: {buffer_tokens: 100}, ",
        "reward:",
        "punishment of long responses",
    ),
    "a flavour of another target": (
        GRPO,
        "target: deepspeed",
        "target: verl\ntarget_flavour: trl",
        "target_flavour",
        "verl has no flavour 'trl'",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_at_its_line(name: str) -> None:
    text, old, new, line, words = CASES[name]
    assert old in text
    with pytest.raises(InputError) as found:
        setting_of(pipeline_from_text(text.replace(old, new, 1) if old else text), Options())
    assert words in str(found.value)
    assert found.value.position is not None
    assert line in found.value.position.text


def test_the_command_line_ends_with_2_and_names_the_targets_that_can(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(PPO)
    done = CliRunner().invoke(app, ["compile", str(file), "--output", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    assert done.exception.exit_code == 2
    assert "target_flavour: openrlhf" in str(done.exception)
    assert "target: verl" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_an_unknown_flavour_names_the_known() -> None:
    with pytest.raises(InputError, match="there is no flavour `trll`"):
        setting_of(pipeline_from_text(GRPO), Options(flavour="trll"))


def test_the_planner_tries_what_the_target_batches_by() -> None:
    setting = setting_of(pipeline_from_text(GRPO), Options(space="quick"))
    for graph in structures(setting):
        domain = dict(graph.stage("update_actor").layouts)
        assert domain["token_budget"] == (0,)
        assert domain["zero"] == (0, 1, 2, 3)
        assert len(domain["micro_batch"]) > 1


@pytest.mark.parametrize("changes", [("", ""), ("nodes: 2", "nodes: 1"), ("minibatches_per_step: 2", "")])
def test_a_plan_is_found_and_emitted(changes: tuple[str, str]) -> None:
    pipeline = pipeline_from_text(GRPO.replace(*changes) if changes[0] else GRPO)
    setting = setting_of(pipeline, Options(space="quick"))
    plan = compile_pipeline(pipeline, Options(space="quick"))
    files = plan_files(plan, setting)
    config = json.loads(files["launch/ds_config.json"].content)
    assert config["train_batch_size"] * setting.work.minibatches == 64 * 16
    assert plan.target.name == "deepspeed"
    assert any(rewrite.name == "drop-old-logprobs" for rewrite in plan.rewrites) == (setting.work.minibatches == 1)
    assert plan.period_interval_s[1] > 1.5 * plan.period_s  # no published row of this class: a wide interval


def test_a_server_is_planned_where_only_it_has_the_layout() -> None:
    text = GRPO + "fix: {rollout: {batched_tokens: 16384}}\n"  # which no colocated engine has
    pipeline, options = pipeline_from_text(text), Options(space="quick")
    setting = setting_of(pipeline, options)
    assert {graph.mode for graph in structures(setting)} == {"colocate", "server"}
    plan = compile_pipeline(pipeline, options)
    assert plan.graph.mode == "server"
    arguments = plan_files(plan, setting)["launch/vllm_server.txt"].content.decode().splitlines()
    assert "--max-num-batched-tokens=16384" in arguments


def test_backends_are_listed() -> None:
    assert backend("deepspeed").version == "0.19.8"
    assert backend("deepspeed", "trl").name == "deepspeed"
