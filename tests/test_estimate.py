"""`rpegc estimate`: verdicts on launches of verl and on plans, and what is said of those it cannot price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from example_plans import separate_rollout
from typer.testing import CliRunner

from rpegc.catalog import catalogue_models
from rpegc.cli import app
from rpegc.errors import InputError
from rpegc.estimate import Estimate, estimate, given_by_launch, given_by_plan
from rpegc.importers.verl import read_launch

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SCRIPT = """
# GRPO on one node
set -x
NNODES=${NNODES:-1}
max_prompt_length=512; echo $(touch /tmp/rpegc-was-here)
max_prompt_length=512
max_response_length=$((1024 * 2))
budget=$(((max_prompt_length + max_response_length) * 2))
DATA=(
    data.train_batch_size=256
    data.max_prompt_length=${max_prompt_length}   # prompts
    data.max_response_length=${max_response_length}
)
if [ "$DEVICE" = npu ]; then
    budget=1
fi
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "${DATA[@]}" \\
    actor_rollout_ref.model.path=$HOME/models/Qwen2.5-7B-Instruct \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$budget \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \\
    actor_rollout_ref.rollout.n=8 \\
    trainer.logger='["console","wandb"]' \\
    trainer.n_gpus_per_node=8 trainer.nnodes=$NNODES $@
"""

LARGER = "actor_rollout_ref.model.path=Qwen2.5-14B"


def judged(*changes: str, hardware: str = "h100-dgx") -> Estimate:
    return estimate(given_by_launch("\n".join([SCRIPT, *changes]), "launch", hardware))


def test_a_launch_that_fits_says_so_with_margin_and_probability() -> None:
    one = judged()
    assert one.fits
    assert one.where == "device"
    assert one.margin_bytes > 0
    assert one.fit_probability > 0.95
    assert {phase.phase for phase in one.memory} == set(one.stages)
    assert "trainer.logger" in one.ignored
    assert "data.max_prompt_length" not in one.ignored


def test_the_script_is_read_and_not_run() -> None:
    given = given_by_launch(SCRIPT, "launch", "h100-dgx")
    update = next(given.layouts[stage.name] for stage in given.graph.stages if stage.op.value == "train")
    assert update.token_budget == 5120  # type: ignore[union-attr]
    assert not Path("/tmp/rpegc-was-here").exists()


@pytest.mark.parametrize(
    ("changes", "term"),
    [
        ((f"{ROLLOUT}.gpu_memory_utilization=0.97",), "kv_cache"),
        ((f"{ROLLOUT}.gpu_memory_utilization=0.1",), "kv_cache"),
        ((LARGER, "trainer.n_gpus_per_node=2"), "optimizer"),
        ((LARGER, "trainer.n_gpus_per_node=2", f"{ACTOR}.fsdp_config.optimizer_offload=True"), "optimizer_onloaded"),
        ((f"{ACTOR}.ppo_max_token_len_per_gpu=400000", f"{ACTOR}.ppo_mini_batch_size=256"), "activations"),
    ],
)
def test_an_overflow_is_named(changes: tuple[str, ...], term: str) -> None:
    one = judged(*changes)
    assert not one.fits
    assert one.margin_bytes < 0
    assert one.fit_probability < 0.5
    assert one.where == "device"
    assert one.term.split(".")[1] == term


def test_a_host_that_is_too_small_is_named() -> None:
    """Offloaded states of 32B, in pinned blocks of powers of two, are too much for two GH200 nodes of Alps."""
    one = judged(
        "actor_rollout_ref.model.path=Qwen2.5-32B", "trainer.n_gpus_per_node=4",
        f"{ROLLOUT}.tensor_model_parallel_size=4", f"{ROLLOUT}.gpu_memory_utilization=0.4",
        f"{ACTOR}.fsdp_config.param_offload=True", f"{ACTOR}.fsdp_config.optimizer_offload=True",
        f"{ACTOR}.use_kl_loss=False", "trainer.nnodes=2", hardware="gh200-alps",
    )  # fmt: skip
    assert not one.fits
    assert one.where == "host"
    assert one.term == "update_actor.offloaded_optimizer"
    assert max(phase.device_total_bytes / phase.device_capacity_bytes for phase in one.memory) < 1


def test_recompute_offload_and_ulysses_of_megatron_and_fsdp_are_read() -> None:
    words = [
        "actor_rollout_ref.model.path=Qwen3-30B-A3B", "data.train_batch_size=64", f"{ACTOR}.strategy=megatron",
        f"{ACTOR}.ppo_mini_batch_size=64", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
        f"{ACTOR}.megatron.tensor_model_parallel_size=2", f"{ACTOR}.megatron.pipeline_model_parallel_size=2",
        f"{ACTOR}.megatron.expert_model_parallel_size=4", f"{ACTOR}.megatron.expert_tensor_parallel_size=1",
        f"+{ACTOR}.megatron.override_transformer_config.recompute_granularity=full",
        f"{ACTOR}.megatron.optimizer_offload=True", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2",
        "algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=4", "trainer.nnodes=2",
    ]  # fmt: skip
    given = given_by_launch(" ".join(words), "launch", "h100-dgx")
    layout = next(given.layouts[stage.name] for stage in given.graph.stages if stage.op.value == "train")
    read = {name: getattr(layout, name) for name in ("dp", "tp", "pp", "ep", "etp", "zero", "recompute", "micro_batch")}
    assert read == {"dp": 4, "tp": 2, "pp": 2, "ep": 4, "etp": 1, "zero": 1, "recompute": "full", "micro_batch": 1}
    assert layout.offload_optimizer  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"{ACTOR}.use_dynamic_bsz=False", "ppo_micro_batch_size_per_gpu` is missing"),
        (f"{ACTOR}.ppo_mini_batch_size=512", "less than ppo_mini_batch_size"),
        (f"{ROLLOUT}.tensor_model_parallel_size=3", "does not divide the 8 GPUs"),
        (f"{ROLLOUT}.gpu_memory_utilization=1.7", "must lie above 0"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu=many", "must be a whole number"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu=$(nproc)", "not decided by the script alone"),
        ("actor_rollout_ref.model.path=Unheard-Of-7B", "not in the catalogue"),
        ("trainer.n_gpus_per_node=16", "a node of h100-dgx has 8"),
        (f"{ROLLOUT}.name=trtllm", "not priced"),
        ("x='", "never closed"),
    ],
)
def test_what_cannot_be_priced_is_said(change: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        judged(change)


def test_the_verb_prints_json_and_exits_with_3_where_it_does_not_fit(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    runner = CliRunner()
    fits = runner.invoke(app, ["estimate", str(script), "--hardware", "h100-dgx", "--json"])
    assert fits.exit_code == 0
    document = json.loads(fits.stdout)["estimates"][0]
    assert document["fits"]
    assert document["margin_bytes"] == document["capacity_bytes"] - document["total_bytes"]
    script.write_text(SCRIPT + f"\n{ROLLOUT}.gpu_memory_utilization=0.97")
    overflows = runner.invoke(app, ["estimate", str(script), "--hardware", "h100-dgx"])
    assert overflows.exit_code == 3
    assert "does not fit" in overflows.stdout
    assert "rollout.kv_cache" in overflows.stdout


def test_a_table_lists_what_it_cannot_decide(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    words = " ".join(line for line in SCRIPT.splitlines() if "=" in line and line.startswith("    actor"))
    words = words.replace("\\", "").replace("$budget", "5120").replace("$HOME/models/", "")
    table.write_text(f"row_id,hardware,overrides\none,h100-dgx,{words}\ntwo,,{words}\nthree,h100-dgx,nothing\n")
    found = CliRunner().invoke(app, ["estimate", str(table), "--json"])
    document = json.loads(found.stdout)
    assert [one["name"] for one in document["estimates"]] == ["one"]
    assert [one["name"] for one in document["undecided"]] == ["two", "three"]


def test_a_compiled_plan_is_priced_as_the_search_priced_it() -> None:
    plan, _ = separate_rollout()
    one = estimate(given_by_plan(plan))
    assert one.fits
    assert one.stages == {stage.name: stage.seconds for stage in plan.stages if stage.layout is not None}
    by_stage = {phase.phase: phase for phase in one.memory}
    for phase in plan.memory:
        again = by_stage[phase.phase]
        assert again.device_total_bytes == pytest.approx(phase.device_total_bytes)
        assert again.host_total_bytes == pytest.approx(phase.host_total_bytes)
        assert again.fit_probability == pytest.approx(phase.fit_probability)


def test_what_the_backend_writes_is_read_back_as_the_same_layouts() -> None:
    plan, files = separate_rollout()
    text = files["launch/verl_overrides.txt"].content.decode()
    launch = read_launch(text, "launch", "gh200-alps", None, catalogue_models())
    for stage in plan.stages:
        if stage.layout is not None:
            again = launch.layouts[stage.op, stage.model]
            mesh = launch.meshes[stage.op, stage.model]
            assert again == stage.layout, stage.name
            assert mesh.mesh_class == plan.mesh(stage.mesh).mesh_class, stage.name
