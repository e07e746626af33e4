"""What verl could not run as a whole is refused before a file is written; what it can run is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from verl_plans import (
    colocate_async,
    colocated_grpo,
    lora,
    megatron_grpo,
    megatron_ppo,
    one_step_off,
    pipeline,
    planned,
    ppo,
    separate_async,
)

from backends import backend, backend_names
from backends.verl.capabilities import capabilities, ties_for
from rpegc.errors import InputError
from rpegc.ir.graph import Edge, Op, Stage
from rpegc.plan import Plan, PlannedRewrite, Target

VERL = backend("verl")

SOUND: dict[str, Callable[[], Plan]] = {
    "colocated GRPO": colocated_grpo,
    "PPO, reward model apart": ppo,
    "PPO, reward model among the others": lambda: ppo(own_pool=False),
    "one-step-off": one_step_off,
    "LoRA": lora,
    "GRPO on Megatron": megatron_grpo,
    "PPO on Megatron": megatron_ppo,
    "separate-async": separate_async,
    "separate-async on Megatron": lambda: separate_async(engine="megatron"),
    "colocate-async": colocate_async,
}


def edited(plan: Plan, stage: str, **changes: Any) -> Plan:
    """Return the plan with a stage's layout, mesh or model changed."""
    stages = []
    for old in plan.stages:
        if old.name == stage:
            own = {key: changes[key] for key in ("mesh", "model") if key in changes}
            layout = {key: value for key, value in changes.items() if key not in own}
            old = replace(old, layout=replace(old.layout, **layout), **own)  # type: ignore[type-var]
        stages.append(old)
    return replace(plan, stages=tuple(stages))


def without(plan: Plan, *names: str) -> Plan:
    """Return the plan without some stages."""
    stages = tuple(stage for stage in plan.stages if stage.name not in names)
    return replace(plan, stages=stages, graph=plan.graph.without_stages(*names))


def weights_after(plan: Plan, distance: int) -> Plan:
    """Return the plan with another distance from training to generation, through a sync stage."""
    graph = plan.graph
    edges = (Edge("train_actor", "sync", "weights"), Edge("sync", "generate", "weights", distance))
    return replace(plan, graph=replace(graph, stages=(*graph.stages, Stage("sync", Op.SYNC, "actor")), edges=edges))


def judged_twice() -> Plan:
    plan = ppo()
    return replace(plan, pipeline=plan.pipeline | {"reward": {"function": "a.py:score"}})


def another_reference(key: str) -> Plan:
    document = pipeline()
    document["models"]["reference"] = document["models"]["reference"] | {key: "/models/other"}
    return replace(colocated_grpo(), pipeline=document)


def overlapping_judge() -> Plan:
    plan = ppo()
    return replace(plan, meshes=(plan.meshes[0], replace(plan.meshes[1], first_node=2)))


def two_generators() -> Plan:
    plan = colocated_grpo()
    return replace(plan, stages=(*plan.stages, replace(plan.stages[0], name="again")))


def judge_that_generates() -> Plan:
    plan = colocated_grpo()
    return replace(plan, stages=(*plan.stages, replace(plan.stages[0], name="judge", model="reward")))


def with_critic(plan: Plan) -> Plan:
    train = plan.stage("train_actor").layout
    document = plan.pipeline | {"algorithm": "ppo"}
    extra = (
        planned("values", "forward", "critic", "train", train),
        planned("train_critic", "train", "critic", "train", train),
    )
    return replace(plan, pipeline=document, stages=(*plan.stages, *extra))


REFUSED: list[tuple[str, Callable[[], Plan], str]] = [
    ("another target", lambda: replace(colocated_grpo(), target=Target("deepspeed", "0.19.8")), "deepspeed 0.19.8"),
    ("another version", lambda: replace(colocated_grpo(), target=Target("verl", "0.8.0")), "verl 0.9.1"),
    (
        "a mode verl lacks",
        lambda: replace(colocated_grpo(), graph=replace(colocated_grpo().graph, mode="fully-async")),
        "not for 'fully-async'",
    ),
    ("no old log-probs", lambda: without(colocated_grpo(), "old_logprobs"), "recomputes old log-probs"),
    ("PPO without values", lambda: without(ppo(), "values"), "gae needs a critic"),
    ("GRPO with a critic", lambda: replace(ppo(), pipeline=ppo().pipeline | {"algorithm": "grpo"}), "needs no critic"),
    ("an algorithm verl is not written for", lambda: colocated_grpo(algorithm="dpo"), "verl has no loss over pairs"),
    ("KL without a reference", lambda: without(colocated_grpo(), "reference_logprobs"), "has no reference stage"),
    (
        "a reference without KL",
        lambda: colocated_grpo(**{"training.kl.coefficient": 0.0}),
        "a reference stage without use",
    ),
    ("a reference with other weights", lambda: another_reference("weights"), "'/models/other'"),
    ("a reference with another config", lambda: another_reference("config"), "models.reference.config"),
    (
        "LoRA with a separate reference",
        lambda: colocated_grpo(**{"training.lora_rank": 16}),
        "the actor without its adapter",
    ),
    ("no LoRA with a shared reference", lambda: lora(**{"training.lora_rank": 0}), "rank 0"),
    (
        "minibatches that do not tile the prompts",
        lambda: colocated_grpo(**{"workload.minibatches_per_step": 3}),
        "3 must divide the 512 prompts",
    ),
    ("a critic in one-step-off", lambda: with_critic(one_step_off()), "cannot train a critic"),
    (
        "LoRA in one-step-off",
        lambda: without(
            one_step_off(**{"training.lora_rank": 16, "training.kl.coefficient": 0.0}), "reference_logprobs"
        ),
        "frozen base weights",
    ),
    (
        "a reward model in one-step-off",
        lambda: replace(
            one_step_off(),
            pipeline=one_step_off().pipeline | {"reward": None},
            stages=(
                *one_step_off().stages,
                planned("score", "forward", "reward", "train", one_step_off().stage("old_logprobs").layout),
            ),
        ),
        "never creates the reward model's pool",
    ),
    ("rollout on the trainer's GPUs in one-step-off", lambda: edited(one_step_off(), "generate", mesh="train"), "own"),
    ("a rollout pool in the sync mode", lambda: edited(ppo(), "generate", mesh="judge"), "generates in the actor's"),
    ("a critic with its own pool", lambda: edited(ppo(), "train_critic", mesh="judge"), "in the actor's pool (train)"),
    ("a reward pool that overlaps", overlapping_judge, "overlaps another pool"),
    (
        "more GPUs than there are",
        lambda: replace(ppo(), devices=replace(ppo().devices, nodes=3, gpus=12)),
        "16 GPUs of 12",
    ),
    ("weights one step late in the sync mode", lambda: weights_after(colocated_grpo(), 2), "the plan 2 steps"),
    ("fresh weights in one-step-off", lambda: weights_after(one_step_off(), 1), "2 steps after training"),
    (
        "a pass with another sharding than its engine",
        lambda: edited(colocated_grpo(), "old_logprobs", zero=2),
        "zero must be equal in one engine: train_actor 3, old_logprobs 2",
    ),
    (
        "two budgets for the critic",
        lambda: edited(ppo(), "values", token_budget=65536),
        "token_budget must be equal in one engine",
    ),
    (
        "two sizes in one Megatron process",
        lambda: edited(megatron_ppo(), "train_critic", tp=4, pp=3, dp=1, shard_size=1, vpp=1),
        "tp must be equal in one engine",
    ),
    ("ZeRO 3 on Megatron", lambda: edited(megatron_grpo(), "reference_logprobs", zero=3), "zero must be 1, not 3"),
    (
        "three experts a rank",
        lambda: edited(megatron_grpo(), "train_actor", ep=3),
        "ep must be equal in one engine: old_logprobs 4",
    ),
    (
        "separate-async with recomputed log-probs",
        lambda: replace(separate_async(), rewrites=separate_async().rewrites[1:]),
        "minibatches-by-completion",
    ),
    ("separate-async far ahead", lambda: separate_async(9), "weights 2 to 9 steps after training"),
    (
        "LoRA in separate-async",
        lambda: without(
            separate_async(**{"training.lora_rank": 16, "training.kl.coefficient": 0.0}), "reference_logprobs"
        ),
        "frozen base weights",
    ),
    (
        "carried samples in the sync mode",
        lambda: replace(colocate_async(), graph=replace(colocate_async().graph, mode="sync")),
        "colocate-async, and only there",
    ),
    (
        "carried samples before V1",
        lambda: without(colocate_async(**{"algorithm": "remax", "training.kl.coefficient": 0.0}), "reference_logprobs"),
        "mode colocate-async is V1's",
    ),
    (
        "samples carried over twice",
        lambda: replace(
            colocate_async(**{"allow.max_staleness": 2}),
            graph=colocate_async().graph.replace_stage(
                colocate_async().graph.stage("generate").with_attributes(carries=2)
            ),
        ),
        "carry over 2 times; its settings hold the bound of one version",
    ),
    ("rewards from a function and a model", judged_twice, "from a function or from a model"),
    ("two generate stages", two_generators, "already taken by generate"),
    ("a judge that generates", judge_that_generates, "no place for `generate` of the model `reward`"),
    (
        "a function verl has no place for",
        lambda: colocated_grpo(stages={"sandbox": {"op": "function", "in": ["sequences"], "out": ["traces"]}}),
        "stages.sandbox",
    ),
    ("nothing that generates", lambda: without(colocated_grpo(), "generate"), "no stage that is verl's rollout"),
]


@pytest.mark.parametrize("name", SOUND)
def test_sound_plan_is_accepted(name: str) -> None:
    VERL.check(SOUND[name]())


@pytest.mark.parametrize(("make", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_plan_is_refused(make: Callable[[], Plan], words: str) -> None:
    with pytest.raises(InputError) as caught:
        VERL.emit(make())
    assert words in str(caught.value)


def test_reuse_of_rollout_logprobs_needs_no_old_logprobs() -> None:
    plan = without(colocated_grpo(), "old_logprobs")
    rewrite = PlannedRewrite("reuse-rollout-logprobs", "model", "old_logprobs", None)
    overrides = VERL.emit(replace(plan, rewrites=(rewrite,)))["launch/verl_overrides.txt"].content.decode()
    assert "algorithm.rollout_correction.bypass_mode=True\n" in overrides


def test_rules_are_checked_again_with_the_model_of_the_resolved_pipeline() -> None:
    plan = edited(colocated_grpo(architectures={"actor": {"heads": 30, "kv_heads": 30}}), "generate", tp=4, replicas=4)
    with pytest.raises(InputError, match="rollout tp 4 must divide 30 attention heads"):
        VERL.check(plan)


def test_rules_are_checked_with_facts_of_the_compiler() -> None:
    facts = {"generate": {"parameter_bytes": 1e12, "hbm_bytes": 1e11}}
    with pytest.raises(InputError, match="weights-fit-the-engine"):
        VERL.check(colocated_grpo(), facts)


def test_workload_rules_hold_without_facts() -> None:
    with pytest.raises(InputError, match="4096 × ulysses 2 × cp 1 must hold the longest sequence, 17408 tokens"):
        VERL.check(edited(colocated_grpo(), "train_actor", token_budget=4096))


def test_a_reward_model_is_not_bound_by_rules_of_training_engines() -> None:
    VERL.check(edited(ppo(), "score", token_budget=1, zero=0))


def test_ties_cover_every_pass_of_a_trained_model() -> None:
    ties = {(tie.stages, tie.fields) for tie in ties_for(ppo().graph)}
    engine = ("ulysses", "shard_size", "zero", "offload_parameters", "offload_optimizer")
    assert ties == {
        (("train_critic", "values"), engine),
        (("train_critic", "values"), ("token_budget",)),
        (("train_actor", "old_logprobs"), engine),
    }


def test_two_passes_of_the_actor_share_one_budget() -> None:
    ties = [tie for tie in ties_for(lora().graph) if tie.fields == ("token_budget",)]
    assert [tie.stages for tie in ties] == [("old_logprobs", "reference_logprobs")]


def test_a_rollout_apart_is_not_offered_with_adapters() -> None:
    shared = ["colocated", "reward-pool", "teacher-pool", "colocate-async"]
    assert [p.name for p in capabilities(lora_rank=16).placements] == shared
    apart = {"one-step-off", "separate-async", "separate-async-reward-pool"}
    assert {p.name for p in capabilities().placements} == {*shared, *apart}


def test_another_version_is_refused() -> None:
    with pytest.raises(InputError, match=r"writes for 0\.9\.1, not '0\.8\.0'"):
        VERL.capabilities("0.8.0")


def test_unknown_backend_and_site_are_guessed() -> None:
    assert backend_names() == ("deepspeed", "native", "verl")
    with pytest.raises(InputError, match="did you mean `verl`"):
        backend("verll")
    with pytest.raises(InputError, match="did you mean `alps`"):
        VERL.emit(colocated_grpo(), site="alp")


def test_every_placement_can_be_emitted() -> None:
    """The modes that search may choose are those that plans above are emitted for."""
    assert {make().graph.mode for make in SOUND.values()} == {pattern.mode for pattern in capabilities().placements}
