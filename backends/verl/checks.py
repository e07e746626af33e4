"""What verl 0.9.1 refuses, or crashes on at run time, about a plan as a whole: checked before anything is emitted.

What the pipeline alone decides is in `pipeline_checks.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from backends.plan_checks import check_rules, check_ties, weight_distance
from backends.roles import Parts, parts_of
from backends.verl.capabilities import (
    APART,
    COLOCATE_ASYNC,
    COMPLETION_ORDER,
    ENGINE_RULES,
    KINDS,
    MODES,
    MOST_STALENESS,
    ONE_STEP_OFF,
    PARTIAL,
    REUSE_LOGPROBS,
    SEPARATE_ASYNC,
    SERVED,
    V1_ASYNCHRONOUS,
    VERSION,
    ties_for,
)
from backends.verl.pipeline_checks import check_pipeline
from backends.verl.request import Request, request_of
from backends.verl.run import carried_of, engine_of, mode_of, rewritten
from rpegc.emit import Facts
from rpegc.errors import InputError
from rpegc.plan import Plan

TRAINER = "verl/trainer/ppo/v1/trainer_base.py"
SEPARATE_TRAINER = "verl/trainer/ppo/v1/trainer_separate_async.py"
ONE_STEP_TRAINER = "verl/experimental/one_step_off_policy/ray_trainer.py"


def check_plan(plan: Plan, facts: Facts | None = None) -> None:
    """Raise InputError for the first thing in the plan that verl cannot run.

    `facts` holds, per stage, the model's and machine's context columns.
    """
    check_pipeline(plan.pipeline)
    parts, request = parts_of(plan), request_of(plan)
    for check in PLAN_CHECKS:
        check(plan, parts, request)
    for stage in plan.stages:
        if stage.layout is not None:
            kind = KINDS.get((stage.op, stage.model), stage.op)
            binding = ENGINE_RULES[engine_of(plan)][kind]
            rules = tuple(rule for rule in binding if not (kind == SERVED and rule.name in SERVED_ELSEWHERE))
            check_rules(plan, stage, rules, request, (facts or {}).get(stage.name, {}))


SERVED_ELSEWHERE = frozenset(
    {"fsdp-has-no-model-parallelism", "fsdp2-always-shards", "token-budget-holds-a-sequence", "batch-splits-over-ranks"}
)
"""Rules of FSDP passes that do not bind a reward model or a teacher: verl serves them with vLLM."""


def _target(plan: Plan, parts: Parts, request: Request) -> None:
    if plan.target.name != "verl" or plan.target.version not in ("", VERSION):
        raise InputError(
            f"the plan is for {plan.target.name} {plan.target.version}; this backend writes for verl {VERSION}"
        )
    if mode_of(plan) not in MODES:
        raise InputError(f"verl launches are written for {', '.join(MODES)}, not for {plan.graph.mode!r}")


def _old_logprobs(plan: Plan, parts: Parts, request: Request) -> None:
    if parts.old_logprobs is None and not rewritten(plan, "reuse-rollout-logprobs"):
        raise InputError(f"verl recomputes old log-probs in every step: the plan has no such stage [{TRAINER}]")


def _critic(plan: Plan, parts: Parts, request: Request) -> None:
    needed = request.needs_critic
    if needed != (parts.critic is not None and parts.values is not None):
        wanted = "a critic that is trained and gives values" if needed else "no critic"
        raise InputError(f"algorithm {request.get('algorithm')}: verl's {request.estimator} needs {wanted} [{TRAINER}]")


def _reference(plan: Plan, parts: Parts, request: Request) -> None:
    where = request.kl_where
    if (where != "none") != (parts.reference is not None):
        state = "has no reference stage" if parts.reference is None else "has a reference stage without use"
        raise InputError(f"training.kl acts on {where} but the plan {state} [verl/trainer/ppo/utils.py]")
    if parts.reference is None:
        return
    if (request.lora_rank > 0) != parts.reference_in_actor:
        raise InputError(
            f"with LoRA (rank {request.lora_rank}) verl's reference is the actor without its adapter, "
            f"and only then: the plan must agree (share-base-reference) [{TRAINER}]"
        )


def _pools(plan: Plan, parts: Parts, request: Request) -> None:
    shared = parts.actor.mesh
    for part in (parts.old_logprobs, parts.reference, parts.critic, parts.values):
        if part is not None and part.mesh != shared:
            raise InputError(
                f"stage {part.name}: verl runs it in the actor's pool ({shared.name}), "
                f"not on {part.mesh.name} [{TRAINER}]"
            )
    rollout = parts.rollout.mesh
    mode = mode_of(plan)
    if mode in APART and rollout.overlaps(shared):
        source = ONE_STEP_TRAINER if mode == ONE_STEP_OFF else SEPARATE_TRAINER
        raise InputError(f"stage {parts.rollout.name}: {mode} needs a rollout pool of its own [{source}]")
    if mode not in APART and rollout != shared:
        raise InputError(f"stage {parts.rollout.name}: the {mode} trainer generates in the actor's pool [{TRAINER}]")
    reward = parts.reward.mesh if parts.reward else shared
    if reward != shared and (reward.overlaps(shared) or reward.overlaps(rollout)):
        raise InputError(
            f"the reward model's pool {reward.name} overlaps another pool [verl/single_controller/ray/base.py]"
        )
    teacher = parts.teacher.mesh if parts.teacher else shared
    if parts.teacher and any(teacher.overlaps(other) for other in (shared, rollout)):
        raise InputError(f"the teacher needs a pool of its own, {teacher.name} is not [{TRAINER}: teacher_pool]")
    pools = {shared, rollout, reward, teacher}
    gpus = sum(mesh.gpus for mesh in pools)
    if gpus > plan.devices.gpus:
        raise InputError(f"the pools ask for {gpus} GPUs of {plan.devices.gpus} [verl/single_controller/ray/base.py]")


def _one_step_off(plan: Plan, parts: Parts, request: Request) -> None:
    if mode_of(plan) != ONE_STEP_OFF:
        return
    if parts.critic is not None:
        raise InputError(
            "one-step-off cannot train a critic with FSDP2 or Megatron "
            "[verl/experimental/separation/ray_trainer.py: NotImplementedError]"
        )
    if parts.reward is not None:
        raise InputError(f"one-step-off never creates the reward model's pool [{ONE_STEP_TRAINER}]")
    if request.lora_rank:
        raise InputError(
            "one-step-off sends only the frozen base weights of a LoRA actor to the rollout "
            "[verl/workers/engine_workers.py: update_weights drops the adapter]"
        )


def _separate_async(plan: Plan, parts: Parts, request: Request) -> None:
    if mode_of(plan) != SEPARATE_ASYNC:
        return
    for name in (COMPLETION_ORDER, REUSE_LOGPROBS):
        if not rewritten(plan, name):
            raise InputError(f"separate-async is written for plans with the rewrite {name} [{SEPARATE_TRAINER}]")
    if request.lora_rank:
        raise InputError(
            "separate-async sends only the frozen base weights of a LoRA actor to the rollout "
            "[verl/workers/engine_workers.py: update_weights drops the adapter]"
        )
    if parts.reward is not None and parts.reward.mesh == parts.actor.mesh:
        raise InputError(f"separate-async needs a pool of its own for the reward model [{SEPARATE_TRAINER}]")


def _partial_rollout(plan: Plan, parts: Parts, request: Request) -> None:
    if rewritten(plan, PARTIAL) != (mode_of(plan) == COLOCATE_ASYNC):
        raise InputError(
            f"mode {mode_of(plan)}: samples carry over from step to step in colocate-async, and only there "
            "[verl/trainer/ppo/v1/trainer_colocate_async.py]"
        )
    if mode_of(plan) in V1_ASYNCHRONOUS and request.before_v1:
        raise InputError(
            f"algorithm {request.get('algorithm')}: mode {mode_of(plan)} is V1's, which never makes the baselines "
            f"[{TRAINER}]"
        )
    carried, ahead = carried_of(plan), weight_distance(plan, parts.actor.name, parts.rollout.name)
    if mode_of(plan) == COLOCATE_ASYNC and (carried != 1 or (ahead or 1) != 1):
        raise InputError(
            f"mode colocate-async: samples carry over {carried} times; its settings hold the bound of one version "
            "exactly, and no other is planned [verl/trainer/ppo/v1/replay_buffer.py]"
        )


def _weight_distance(plan: Plan, parts: Parts, request: Request) -> None:
    mode = mode_of(plan)
    low, high = {ONE_STEP_OFF: (2, 2), SEPARATE_ASYNC: (2, 1 + MOST_STALENESS)}.get(mode, (1, 1))
    distance = weight_distance(plan, parts.actor.name, parts.rollout.name)
    if distance is not None and not low <= distance <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise InputError(f"mode {mode} uses weights {wanted} steps after training, the plan {distance} steps")


def _ties(plan: Plan, parts: Parts, request: Request) -> None:
    check_ties(plan, ties_for(plan.graph))


PLAN_CHECKS: tuple[Callable[[Plan, Parts, Request], None], ...] = (
    _target,
    _old_logprobs,
    _critic,
    _reference,
    _one_step_off,
    _separate_async,
    _partial_rollout,
    _pools,
    _weight_distance,
    _ties,
)
