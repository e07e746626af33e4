"""The settings of verl: complete, quoted so that hostile texts stay texts, the user's own where the plan has no say."""

from __future__ import annotations

from typing import Any

import pytest
from verl_plans import colocated_grpo, lora, one_step_off, ppo

from backends.verl import overrides
from backends.verl.hydra import Override, hydra_text, hydra_value
from backends.verl.keys import known_keys
from backends.verl.run import run_of
from rpegc.emit import TargetRefusal, quote_bash, slug
from rpegc.errors import InputError
from rpegc.plan import Plan


def overrides_of(plan: Plan, cores_per_node: int = 0) -> tuple[Override, ...]:
    return overrides.overrides_of(run_of(plan, cores_per_node))


def settings(plan: Plan) -> dict[str, str]:
    """Return the emitted settings by key, as Hydra reads them."""
    return dict(override.line.split("=", 1) for override in overrides_of(plan))


def test_batches_count_prompts_and_updates() -> None:
    found = settings(colocated_grpo())
    assert found["data.train_batch_size"] == "512"
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"] == "128"
    assert found["actor_rollout_ref.rollout.n"] == "16"
    assert found["actor_rollout_ref.rollout.max_model_len"] == "17408"


def test_no_key_is_written_twice() -> None:
    for plan in (colocated_grpo(), ppo(), ppo(own_pool=False), one_step_off(), lora()):
        keys = [override.key for override in overrides_of(plan)]
        assert len(keys) == len(set(keys))


def test_each_pass_has_its_own_token_budget() -> None:
    found = settings(colocated_grpo())
    assert found["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == "32768"
    assert found["actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"] == "65536"


def test_kl_in_the_loss_or_in_the_reward() -> None:
    in_loss, in_reward = settings(colocated_grpo()), settings(ppo())
    assert in_loss["actor_rollout_ref.actor.use_kl_loss"] == "True"
    assert in_loss["actor_rollout_ref.actor.kl_loss_type"] == "low_var_kl"
    assert in_loss["algorithm.use_kl_in_reward"] == "False"
    assert in_reward["algorithm.use_kl_in_reward"] == "True"
    assert in_reward["algorithm.kl_penalty"] == "kl"
    assert in_reward["algorithm.kl_ctrl.kl_coef"] == "0.01"
    assert in_reward["actor_rollout_ref.actor.use_kl_loss"] == "False"


def test_critic_budget_reaches_the_key_that_the_trainer_reads() -> None:
    assert settings(ppo())["+critic.ppo_infer_max_token_len_per_gpu"] == "32768"


def test_critic_sequence_parallelism_reaches_its_engine() -> None:
    assert settings(ppo())["critic.fsdp.ulysses_sequence_parallel_size"] == "1"


def test_shard_group_and_resharding() -> None:
    whole, grouped = settings(colocated_grpo()), settings(one_step_off())
    assert whole["actor_rollout_ref.actor.fsdp_config.fsdp_size"] == "-1"
    assert whole["actor_rollout_ref.actor.fsdp_config.reshard_after_forward"] == "True"
    assert grouped["actor_rollout_ref.actor.fsdp_config.fsdp_size"] == "4"
    assert grouped["actor_rollout_ref.actor.fsdp_config.reshard_after_forward"] == "False"


def test_one_step_off_keeps_the_proximal_policy_and_its_own_pool() -> None:
    found = settings(one_step_off())
    assert found["algorithm.rollout_correction.bypass_mode"] == "False"
    assert found["actor_rollout_ref.hybrid_engine"] == "False"
    assert found["hydra.searchpath"] == "[pkg://verl.trainer.config]"
    assert (found["trainer.nnodes"], found["rollout.nnodes"], found["rollout.n_gpus_per_node"]) == ("2", "2", "4")
    assert found["actor_rollout_ref.rollout.free_cache_engine"] == "False"
    assert "trainer.v1.trainer_mode" not in found


def test_agent_loop_workers_tile_the_one_step_off_batch() -> None:
    workload = {"workload.prompts_per_step": 30, "workload.samples_per_prompt": 1, "workload.minibatches_per_step": 1}
    assert settings(one_step_off(**workload))["actor_rollout_ref.rollout.agent.num_workers"] == "6"


def test_adapters_need_preloaded_base_weights() -> None:
    found = settings(lora())
    assert found["actor_rollout_ref.model.lora_rank"] == "32"
    assert found["actor_rollout_ref.rollout.load_format"] == "safetensors"
    assert found["actor_rollout_ref.rollout.layered_summon"] == "True"
    assert "actor_rollout_ref.ref.fsdp_config.fsdp_size" not in found


def test_reward_model_apart_never_sleeps_and_among_the_others_does() -> None:
    apart, among = settings(ppo()), settings(ppo(own_pool=False))
    assert apart["reward.reward_model.enable_resource_pool"] == "True"
    assert apart["reward.reward_model.rollout.free_cache_engine"] == "False"
    assert (apart["reward.reward_model.nnodes"], apart["trainer.nnodes"]) == ("1", "3")
    assert apart["reward.reward_model.rollout.tensor_model_parallel_size"] == "2"
    assert among["reward.reward_model.enable_resource_pool"] == "False"
    assert among["reward.reward_model.rollout.free_cache_engine"] == "True"


def test_without_test_data_no_test_runs() -> None:
    found = settings(colocated_grpo(**{"data.val": None}))
    assert found["trainer.test_freq"] == "-1"
    assert found["trainer.val_before_train"] == "False"
    assert found["data.val_files"] == "/data/math.parquet"


def test_what_the_pipeline_leaves_open_is_marked() -> None:
    found = settings(colocated_grpo(data=None, **{"training.learning_rate": None}))
    assert found["data.train_files"] == "RPEGC_MISSING.data.train"
    assert found["actor_rollout_ref.actor.optim.lr"] == "RPEGC_MISSING.training.learning_rate"


def test_relative_paths_start_where_the_job_was_submitted() -> None:
    found = settings(colocated_grpo(**{"data.train": "data/math.parquet"}))
    assert found["data.train_files"] == "'${oc.env:RPEGC_WORK_DIR,.}/data/math.parquet'"
    assert found["reward.custom_reward_function.path"] == "'${oc.env:RPEGC_WORK_DIR,.}/rewards/math.py'"
    assert found["reward.custom_reward_function.name"] == "score"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("actor_rollout_ref.actor.optim.weight_decay", 0.1, "actor_rollout_ref.actor.optim.weight_decay=0.1"),
        ("trainer.max_actor_ckpt_to_keep", 2, "trainer.max_actor_ckpt_to_keep=2"),
        ("actor_rollout_ref.rollout.enforce_eager", True, "actor_rollout_ref.rollout.enforce_eager=True"),
        ("trainer.rollout_data_dir", "my dumps", "trainer.rollout_data_dir='my dumps'"),
        ("actor_rollout_ref.rollout.cudagraph_capture_sizes", [1, 2], None),
    ],
)
def test_user_override_is_passed_through(key: str, value: Any, line: str | None) -> None:
    lines = [override.line for override in overrides_of(colocated_grpo(target_overrides={key: value}))]
    assert lines[-1] == (line or f"{key}=[1,2]")


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("data.train_batch_size", "workload.prompts_per_step"),
        ("actor_rollout_ref.actor.optim.lr", "training.learning_rate"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", "fix: {generate: {tp: ...}}"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "fix: {train_actor: {token_budget: ...}}"),
        ("trainer.nnodes", "cluster.nodes"),
        ("trainer.v1.separate_async.num_warmup_batches", "allow.max_staleness"),
        ("reward_model.enable", "models.reward"),
        ("model_engine", "engine"),
        ("hydra.searchpath", "backend"),
        (
            "actor_rollout_ref.actor.fsdp_config.fsdp_size",
            "{train_actor: {shard_size: ...}, old_logprobs: {shard_size: ...}}",
        ),
        ("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", "fix: {old_logprobs: {token_budget: ...}}"),
        ("actor_rollout_ref.ref.fsdp_config.param_offload", "fix: {reference_logprobs: {offload_parameters: ...}}"),
        ("actor_rollout_ref.model.enable_gradient_checkpointing", "fix: {train_actor: {recompute: ...}}"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization", "fix: {generate: {memory_fraction: ...}}"),
        ("actor_rollout_ref.actor.strategy", "leave out"),
        ("data.seed", "give `--seed` to `rpegc compile`"),
        ("ray_kwargs.ray_init.num_cpus", "sbatch --cpus-per-task"),
        ("rollout.nnodes", "cluster.nodes"),
    ],
)
def test_override_of_a_planned_key_names_what_to_change(key: str, instead: str) -> None:
    for prefix in ("", "+", "++", "~"):
        with pytest.raises(TargetRefusal) as caught:
            overrides_of(colocated_grpo(target_overrides={prefix + key: 1}))
        assert f"target_overrides.{prefix}{key}: " in str(caught.value)
        assert instead in str(caught.value)
        assert caught.value.path == ("target_overrides", prefix + key)


def test_override_of_a_whole_section_is_refused_where_it_holds_planned_keys() -> None:
    with pytest.raises(InputError, match=r"actor_rollout_ref\.actor\.optim\.lr is decided by training\.learning_rate"):
        overrides_of(colocated_grpo(target_overrides={"actor_rollout_ref": {"actor": {"optim": {"lr": 1.0}}}}))
    with pytest.raises(InputError, match="is decided by"):
        overrides_of(colocated_grpo(target_overrides={"actor_rollout_ref.actor": "x"}))


@pytest.mark.parametrize("key", ["~trainer.balance_batch", "a b", "x=1", "", "trainer.", "a@b", "-x", "$(id)"])
def test_override_key_that_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="a key is dotted words"):
        overrides_of(colocated_grpo(target_overrides={key: 1}))


FREE: dict[str, Any] = {
    "trainer.logger": ["console", "file", "wandb"],
    "trainer.project_name": "maths",
    "trainer.experiment_name": "first",
    "trainer.default_local_dir": "/scratch/checkpoints",
    "trainer.resume_mode": "disable",
    "trainer.val_before_train": False,
    "data.truncation": "left",
    "data.custom_cls.path": "my/dataset.py",
    "actor_rollout_ref.model.lora_alpha": 64,
    "actor_rollout_ref.model.target_modules": ["q_proj", "v_proj"],
    "actor_rollout_ref.actor.optim.lr_warmup_steps": 10,
}
"""What neither the planner nor a key of the pipeline file decides."""


@pytest.mark.parametrize("prefix", ["", "++"])
def test_the_users_value_replaces_ours_where_nothing_else_decides(prefix: str) -> None:
    asked = {prefix + key: value for key, value in FREE.items()}
    found = overrides_of(lora(target_overrides=asked))
    bare = [override.line.split("=")[0].lstrip("+") for override in found]
    assert len(bare) == len(set(bare))
    lines = {override.line for override in found}
    assert f"{prefix}trainer.logger=[console,file,wandb]" in lines
    assert f"{prefix}trainer.default_local_dir=/scratch/checkpoints" in lines
    assert set(FREE) <= set(bare)


def test_free_settings_of_a_reward_model_and_of_the_penalty() -> None:
    asked = {
        "reward.reward_model.rollout.gpu_memory_utilization": 0.4,
        "reward.reward_model.rollout.max_model_len": 4096,
        "algorithm.kl_ctrl.type": "adaptive",
    }
    found = settings(ppo(target_overrides=asked))
    assert {key: found[key] for key in asked} == {key: str(value) for key, value in asked.items()}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("actor_rollout_ref.actor.entropy_coef", "did you mean `actor_rollout_ref.actor.entropy_coeff`?"),
        ("trainer.nnode", "did you mean `trainer.nnodes`?"),
        ("optim.weight_decay", "did you mean `actor_rollout_ref.actor.optim.weight_decay`?"),
        ("trainr.balance_batch", "did you mean `trainer.balance_batch`?"),
        ("trainer.logger.extra", "`+trainer.logger.extra` adds it"),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.x", "`+actor_rollout_ref.rollout.engine_kwargs.vllm.x` adds it"),
    ],
)
def test_a_key_that_verl_lacks_is_refused_with_a_guess(key: str, meant: str) -> None:
    with pytest.raises(TargetRefusal, match=r"0\.9\.1's configuration has no such key") as caught:
        overrides_of(colocated_grpo(target_overrides={key: 1}))
    assert meant in str(caught.value)


def test_a_plus_is_refused_only_where_hydra_refuses_it() -> None:
    """Hydra 1.3 takes `+` before a key without value, and for lists; test_verl_compose holds this against Hydra."""
    with pytest.raises(TargetRefusal, match=r"drop the `\+`: `trainer\.balance_batch`"):
        overrides_of(colocated_grpo(target_overrides={"+trainer.balance_batch": True}))
    accepted: dict[str, Any] = {
        "+trainer.rollout_data_dir": "/dumps",
        "+trainer.logger": ["console"],
        "++trainer.balance_batch": True,
        "+actor_rollout_ref.model.override_config.attn_implementation": "eager",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.x": 1,
    }
    lines = {override.line for override in overrides_of(colocated_grpo(target_overrides=accepted))}
    assert {"+trainer.rollout_data_dir=/dumps", "+trainer.logger=[console]", "++trainer.balance_batch=True"} <= lines


@pytest.mark.parametrize("key", ["global_profiler", "++skip", "actor_rollout_ref.rollout.engine_kwargs.vllm"])
def test_a_section_cannot_be_a_single_value(key: str) -> None:
    with pytest.raises(TargetRefusal, match="with keys of its own"):
        overrides_of(colocated_grpo(target_overrides={key: 1}))


def test_a_verifier_of_the_target_is_replaced_in_the_pipeline_only() -> None:
    asked = {"reward.custom_reward_function.path": "mine.py"}
    with pytest.raises(TargetRefusal, match=r"decided by reward\.function"):
        overrides_of(colocated_grpo(reward={"function": None}, target_overrides=asked))


def test_every_setting_of_ours_is_known_or_marked_as_added() -> None:
    for plan in (colocated_grpo(), ppo(), ppo(own_pool=False), one_step_off(), lora()):
        for override in overrides_of(plan):
            known = override.key in known_keys() or override.key.startswith("hydra.")
            assert known != override.add, override.key


def test_one_key_in_two_forms_is_refused() -> None:
    with pytest.raises(InputError, match=r"`trainer\.balance_batch` already sets this key"):
        overrides_of(colocated_grpo(target_overrides={"trainer.balance_batch": True, "++trainer.balance_batch": 1}))


def test_settings_of_the_user_where_this_pipeline_leaves_them_free() -> None:
    """verl's own knobs that only some pipelines decide: agent-loop workers, test samples, reward processes."""
    free = {"actor_rollout_ref.rollout.agent.num_workers": 4, "data.val_max_samples": 100}
    assert settings(colocated_grpo(target_overrides=free))["data.val_max_samples"] == "100"
    assert settings(colocated_grpo(**{"data.val": None}, target_overrides=free))["data.val_max_samples"] == "100"
    assert settings(ppo(target_overrides={"reward.num_workers": 32}))["reward.num_workers"] == "32"


def test_reward_processes_are_bounded_by_cores_and_samples() -> None:
    def workers(cores: int, **changes: Any) -> str:
        found = {o.key: o for o in overrides_of(colocated_grpo(**changes), cores)}
        return found["reward.num_workers"].line.split("=")[1]

    everywhere = {"reward.workers_per_node": 65536}
    assert workers(288) == "256"  # 64 on each of 4 nodes
    assert workers(8, **everywhere) == "32"
    assert workers(0, **everywhere) == "1024"  # 256 a node where nobody knows the cores
    assert workers(288, **everywhere, **{"workload.prompts_per_step": 4, "workload.samples_per_prompt": 5}) == "20"


def test_verls_own_verifier_gets_as_many_processes_as_were_priced() -> None:
    found = settings(colocated_grpo(reward={"function": None, "workers_per_node": 16}))
    assert found["reward.num_workers"] == "64"
    assert "reward.custom_reward_function.path" not in found


@pytest.mark.parametrize(("positions", "length"), [(131072, "34816"), (20000, "20000")])
def test_reward_model_reserves_no_more_cache_than_it_needs(positions: int, length: str) -> None:
    """Twice the longest sequence covers another tokenizer; the model's positions are the limit."""
    found = settings(ppo(architectures={"reward": {"max_positions": positions}}))
    assert found["reward.reward_model.rollout.max_model_len"] == length


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("/models/Qwen3-8B", "/models/Qwen3-8B"),
        ("with space", "'with space'"),
        ("it's", r"'it\'s'"),
        ('say "hi"', "'say \"hi\"'"),
        ("$(rm -rf ~)", "'$(rm -rf ~)'"),
        ("`id`", "'`id`'"),
        ("-rf", "'-rf'"),
        ("null", "'null'"),
        ("12", "'12'"),
        ("a,b", "'a,b'"),
        ("back\\slash", "'back\\slash'"),
        ("ends\\", "'ends\\\\'"),
        ("\\'", "'\\\\\\''"),
        ("ü/模型", "'ü/模型'"),
        ("", "''"),
    ],
)
def test_text_is_quoted_for_hydra(text: str, line: str) -> None:
    assert hydra_text(text, "x") == line


@pytest.mark.parametrize(
    "text", ["two\nlines", "tab\there", "nul\0", "next\u2028line", "${oc.env:HOME}", "a${b}", "???"]
)
def test_text_that_would_not_arrive_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"data\.train"):
        overrides_of(colocated_grpo(**{"data.train": text}))


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="not a finite number"):
        hydra_value(float("nan"), "training.temperature")


def test_bash_words_expand_to_themselves() -> None:
    assert quote_bash("$(id) 'x'") == "'$(id) '\"'\"'x'\"'\"''"
    with pytest.raises(InputError, match="control character"):
        quote_bash("a\nb")


@pytest.mark.parametrize(("name", "safe"), [("a b/c", "a-b-c"), ("--x", "x"), ("模型", "plan"), ("ok_1.2", "ok_1.2")])
def test_slugs_are_safe_file_names(name: str, safe: str) -> None:
    assert slug(name) == safe
