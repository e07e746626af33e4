"""What TRL refuses, or crashes on at run time, about a plan as a whole: checked before anything is emitted."""

from __future__ import annotations

from collections.abc import Callable

from backends.deepspeed.capabilities import COLOCATE, SERVER, VERSION, ties_for
from backends.deepspeed.pipeline_checks import TRAINER, check_pipeline
from backends.deepspeed.request import Request, request_of
from backends.deepspeed.rules import RULES
from backends.plan_checks import check_rules, check_ties, weight_distance
from backends.roles import Parts, parts_of
from rpegc.emit import Facts
from rpegc.errors import InputError
from rpegc.plan import Plan


def check_plan(plan: Plan, facts: Facts | None = None) -> None:
    """Raise InputError for the first thing in the plan that TRL cannot run.

    `facts` holds, per stage, the model's and machine's context columns.
    """
    check_pipeline(plan.pipeline)
    parts, request = parts_of(plan, "TRL"), request_of(plan)
    for check in PLAN_CHECKS:
        check(plan, parts, request)
    for stage in plan.stages:
        if stage.layout is not None:
            check_rules(plan, stage, RULES[stage.op], request, (facts or {}).get(stage.name, {}))


def _target(plan: Plan, parts: Parts, request: Request) -> None:
    if plan.target.name != "deepspeed" or plan.target.version not in ("", VERSION):
        raise InputError(
            f"the plan is for {plan.target.name} {plan.target.version}; this backend writes for deepspeed {VERSION}"
        )
    if (plan.graph.mode or COLOCATE) not in (COLOCATE, SERVER):
        raise InputError(f"TRL launches are written for {COLOCATE} and {SERVER}, not for {plan.graph.mode!r}")


def _parts(plan: Plan, parts: Parts, request: Request) -> None:
    for part in (parts.critic, parts.values, parts.reward):
        if part is not None:
            raise InputError(f"stage {part.name}: TRL has no critic and no planned reward model [{TRAINER}]")
    if (parts.old_logprobs is None) != (request.updates == 1):
        state = "has no such stage" if parts.old_logprobs is None else "has such a stage"
        raise InputError(
            f"TRL recomputes old log-probs if and only if a step has several updates ({request.updates}): "
            f"the plan {state} [{TRAINER}]"
        )
    if (request.kl_where != "none") != (parts.reference is not None):
        state = "has no reference stage" if parts.reference is None else "has a reference stage without use"
        raise InputError(f"training.kl acts on {request.kl_where} but the plan {state} [{TRAINER}]")
    if parts.reference is not None and (request.lora_rank > 0) != parts.reference_in_actor:
        raise InputError(
            f"with LoRA (rank {request.lora_rank}) TRL's reference is the actor without its adapter, and only then: "
            f"the plan must agree (share-base-reference) [{TRAINER}]"
        )


def _pools(plan: Plan, parts: Parts, request: Request) -> None:
    shared, rollout = parts.actor.mesh, parts.rollout.mesh
    for part in (parts.old_logprobs, parts.reference):
        if part is not None and part.mesh != shared:
            raise InputError(f"stage {part.name}: TRL runs it on the actor's GPUs, not on {part.mesh.name} [{TRAINER}]")
    if plan.graph.mode == SERVER and rollout.overlaps(shared):
        raise InputError(f"stage {parts.rollout.name}: a server needs GPUs of its own [trl/generation/vllm_client.py]")
    if plan.graph.mode != SERVER and rollout != shared:
        raise InputError(f"stage {parts.rollout.name}: a colocated engine generates on the actor's GPUs [{TRAINER}]")


def _weight_distance(plan: Plan, parts: Parts, request: Request) -> None:
    distance = weight_distance(plan, parts.actor.name, parts.rollout.name)
    if distance not in (None, 1):
        raise InputError(f"TRL generates with the weights of the step before, the plan {distance} steps before")


def _ties(plan: Plan, parts: Parts, request: Request) -> None:
    check_ties(plan, ties_for(plan.graph))


PLAN_CHECKS: tuple[Callable[[Plan, Parts, Request], None], ...] = (_target, _parts, _pools, _weight_distance, _ties)
