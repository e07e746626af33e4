"""Each preset that verl has arrives there whole, and each that it lacks is refused by name."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preset_pipelines import ON_VERL, preset_plan, preset_text
from verl_proofs import DRIVER, environment, run

from backends.verl.algorithms import AGGREGATIONS, LOSS_MODES
from backends.verl.capabilities import FSDP
from backends.verl.overrides import overrides_of
from backends.verl.request import ESTIMATORS, NO_LOSS, Request
from backends.verl.run import possible_runs
from rpegc.compiler import Options, compile_pipeline, setting_of
from rpegc.errors import InputError
from rpegc.frontend.load import pipeline_from_text
from rpegc.frontend.presets import preset_names
from rpegc.frontend.presets.recipe import AGGREGATIONS as KNOWN_AGGREGATIONS
from rpegc.ir.graph import Op
from rpegc.target import ShardedLayout

ACTOR = "actor_rollout_ref.actor"

ARRIVES: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm.adv_estimator": "grpo", f"{ACTOR}.policy_loss.loss_mode": "vanilla"},
    "dapo": {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc",
        f"{ACTOR}.clip_ratio_high": 0.28,
        f"{ACTOR}.loss_agg_mode": "token-mean",
        f"{ACTOR}.use_kl_loss": False,
        "reward.reward_manager.name": "dapo",
        "reward.reward_kwargs.overlong_buffer_cfg.len": 1638,
        "reward.reward_kwargs.max_resp_len": 8192,
        "trainer.use_v1": True,
    },
    "dr-grpo": {
        "algorithm.norm_adv_by_std_in_grpo": False,
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{ACTOR}.loss_scale_factor": 8192,
        f"{ACTOR}.use_kl_loss": False,
    },
    "gspo": {
        f"{ACTOR}.policy_loss.loss_mode": "gspo",
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
        f"{ACTOR}.clip_ratio_low": 3e-4,
        f"{ACTOR}.clip_ratio_high": 4e-4,
    },
    "cispo": {f"{ACTOR}.policy_loss.loss_mode": "cispo", f"{ACTOR}.clip_ratio_low": 10.0},
    "rloo": {
        "algorithm.adv_estimator": "rloo",
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_penalty": "kl",
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum",
    },
    "reinforce++": {"algorithm.adv_estimator": "reinforce_plus_plus", "algorithm.use_kl_in_reward": True},
    "remax": {"algorithm.adv_estimator": "remax", "trainer.use_v1": False, "actor_rollout_ref.rollout.n": 1},
    "ppo": {"algorithm.adv_estimator": "gae", "critic.enable": True},
    "distill": {
        "distillation.enabled": True,
        "distillation.distillation_loss.loss_mode": "k1",
        "distillation.distillation_loss.use_policy_gradient": True,
        "distillation.distillation_loss.use_task_rewards": False,
        "distillation.teacher_models.teacher_model.model_path": "/models/Qwen3-14B",
        "distillation.teacher_models.teacher_model.inference.max_model_len": 1024 + 8192 + 1,
        "reward.custom_reward_function.path": "/launch/no_reward.py",
    },
}
SELECT = sorted({key for values in ARRIVES.values() for key in values})


def findings(program: str, level: str, folder: Path) -> dict[str, dict[str, Any]]:
    python = environment(level, limit_s=900)
    requests = []
    for name in ON_VERL:
        file = folder / f"{name}.txt"
        file.write_bytes(preset_plan(name)[1]["launch/verl_overrides.txt"].content)
        select = sorted(ARRIVES[name]) if program == "compose.py" else []
        requests.append({"module": DRIVER, "overrides": str(file), "select": select})
    return dict(zip(ON_VERL, run(python, program, requests, folder, limit_s=300), strict=True))


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return findings("compose.py", "compose", tmp_path_factory.mktemp("composed"))


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return findings("validate.py", "validate", tmp_path_factory.mktemp("validated"))


def test_every_preset_is_expressed_or_refused() -> None:
    assert sorted([*ESTIMATORS, *NO_LOSS]) == sorted(preset_names())
    assert sorted(ON_VERL) == sorted(ESTIMATORS)
    assert set(AGGREGATIONS) == set(KNOWN_AGGREGATIONS)


@pytest.mark.parametrize("name", ON_VERL)
def test_settings_are_as_reviewed(name: str, golden: Callable[[str, str], None]) -> None:
    """Before there is a plan: layouts of no meaning stand in, so that no price can change the text."""
    made = next(iter(possible_runs(Request(pipeline_from_text(preset_text(name)).resolved()), FSDP)))
    lines = "".join(f"{override.line}\n" for override in overrides_of(made))
    golden(f"verl/presets/{name.replace('++', '-plus-plus')}.overrides.txt", lines)


@pytest.mark.verl_compose
@pytest.mark.parametrize("name", ON_VERL)
def test_verl_composes_every_preset_and_each_setting_arrives(composed: dict[str, dict[str, Any]], name: str) -> None:
    assert composed[name].get("error") is None
    assert composed[name]["values"] == ARRIVES[name]


@pytest.mark.proof
@pytest.mark.parametrize("name", ON_VERL)
def test_verl_validates_every_preset(validated: dict[str, dict[str, Any]], name: str) -> None:
    assert validated[name].get("error") is None


@pytest.mark.parametrize("name", sorted(NO_LOSS))
def test_what_verl_has_no_loss_for_is_refused_at_its_line(name: str) -> None:
    pipeline = pipeline_from_text(preset_text(name), "p.yaml")
    with pytest.raises(InputError, match="verl has no loss over pairs") as caught:
        setting_of(pipeline, Options(space="quick"))
    assert str(caught.value.position) == "p.yaml:2:1"
    assert "grpo" in (caught.value.hint or "")
    assert caught.value.exit_code == 2


def test_the_teacher_has_gpus_of_its_own() -> None:
    plan, files = preset_plan("distill")
    teacher, actor = plan.stage("teacher"), plan.stage("update_actor")
    assert not plan.mesh(teacher.mesh).overlaps(plan.mesh(actor.mesh))
    assert isinstance(teacher.layout, ShardedLayout)
    source = files["launch/no_reward.py"].content.decode()
    names: dict[str, Any] = {}
    exec(compile(ast.parse(source), "no_reward.py", "exec"), names)  # our own template
    assert names["compute_score"]("any", "text", "truth") == 0.0


def test_with_rewards_the_teacher_comes_on_top() -> None:
    text = preset_text("distill", reward='{function: "rewards/maths.py:score"}')
    (made,) = possible_runs(Request(pipeline_from_text(text).resolved()), FSDP)
    values = {override.key: override.value for override in overrides_of(made)}
    assert values["distillation.distillation_loss.use_task_rewards"] is True
    assert values["reward.custom_reward_function.name"] == "score"


def test_dynamic_sampling_needs_rewards_before_groups_are_chosen() -> None:
    """A reward model among the others judges too late, one step off has no such filter: both are left out."""
    models = "{actor: {config: Qwen/Qwen3-4B}, reward: {config: Qwen/Qwen3-4B}}"
    text = preset_text("dapo", models=models, allow="{max_staleness: 1}").replace("reward: {function", "# {function")
    plan = compile_pipeline(pipeline_from_text(text), Options(space="quick"))
    reward, actor = plan.stage("reward"), plan.stage("update_actor")
    assert plan.graph.mode == "sync"
    assert not plan.mesh(reward.mesh).overlaps(plan.mesh(actor.mesh))


STAGES = {
    "turns": (
        "{rollout: {op: generate, model: actor, in: [prompts], out: [sequences, behaviour_logprobs], turns: 3, "
        "environment: tools}, tools: {op: function, in: [sequences], out: [rewards]}}",
        "stages.rollout.turns: verl needs an agent loop",
    ),
    "samples_per_prompt": (
        "{rollout: {op: generate, model: actor, in: [prompts], out: [sequences, behaviour_logprobs], "
        "samples_per_prompt: 9}}",
        "stages.rollout.samples_per_prompt: verl generates",
    ),
}


@pytest.mark.parametrize("key", STAGES)
def test_what_launches_cannot_carry_out_of_a_stage_is_refused(key: str) -> None:
    stages, message = STAGES[key]
    text = preset_text("grpo", stages=stages)
    text = text.replace("reward: {function", "# {function") if key == "turns" else text
    with pytest.raises(InputError, match=message):
        setting_of(pipeline_from_text(text), Options(space="quick"))


def test_the_losses_are_those_of_the_wheel() -> None:
    """`register_policy_loss` and `agg_loss` know the words that we write."""
    python = environment("compose", limit_s=300)
    (core,) = (python.parent.parent / "lib").glob("python3*/site-packages/verl/trainer/ppo/core_algos.py")
    words = {node.value for node in ast.walk(ast.parse(core.read_text())) if isinstance(node, ast.Constant)}
    assert {*LOSS_MODES.values(), *AGGREGATIONS.values()} <= words
    assert set(ESTIMATORS.values()) <= words


def test_only_the_trainer_before_v1_makes_greedy_baselines() -> None:
    python = environment("compose", limit_s=300)
    (ppo,) = (python.parent.parent / "lib").glob("python3*/site-packages/verl/trainer/ppo")
    assert "reward_baselines" in (ppo / "ray_trainer.py").read_text()
    assert not any("reward_baselines" in file.read_text() for file in (ppo / "v1").glob("*.py"))
    plan, _ = preset_plan("remax")
    assert [stage.name for stage in plan.graph.of_op(Op.GENERATE)] == ["rollout"]
