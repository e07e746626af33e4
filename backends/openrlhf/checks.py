"""What OpenRLHF cannot carry out of a pipeline (refused before the search) or of a plan (before it is emitted)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from backends.openrlhf.arguments import ESTIMATORS, arguments_of
from backends.openrlhf.capabilities import COMMAND, DEEPSPEED_VERSION, HYBRID, RULES, SEPARATE, ties_for
from backends.plan_checks import check_rules, check_ties, weight_distance
from backends.request import NOWHERE_YET, PipelineRequest, no_such_engine, odd_stages, texts_of, two_kinds_of_machine
from backends.roles import PLACES, parts_of, places_hint, stand_ins
from rpegc.emit import Facts, TargetRefusal, one_line
from rpegc.errors import InputError, guess
from rpegc.plan import Plan

MAKER = "openrlhf/trainer/ppo_utils/experience_maker.py"
READER = "openrlhf/datasets/utils.py"
ELSEWHERE = "write `target: verl` for that"

SPLITTERS = {"data.train": ",@*?[", "models.reward.weights": ","}
"""Characters at which OpenRLHF cuts a path into several, or reads a pattern (READER; --reward.model_name_or_path)."""


@dataclass(frozen=True, slots=True)
class Request(PipelineRequest):
    """The resolved pipeline behind a plan; OpenRLHF is named where it refuses."""

    target: ClassVar[str] = "OpenRLHF"


def check_pipeline(pipeline: Mapping[str, Any]) -> None:
    """Raise TargetRefusal for the first thing in a resolved pipeline that no plan on OpenRLHF could carry out."""
    request = Request(pipeline)
    for check in PIPELINE_CHECKS:
        for refusal in check(request):
            raise refusal


def _algorithm(request: PipelineRequest) -> Iterator[TargetRefusal]:
    algorithm = str(request.get("algorithm", ""))
    if algorithm not in ESTIMATORS:
        message = f"algorithm: OpenRLHF launches are not written for {algorithm!r}"
        yield TargetRefusal(message, ("algorithm",), NOWHERE_YET.get(algorithm) or guess(algorithm, ESTIMATORS))
    if request.lora_rank:
        message = "training.lora_rank: OpenRLHF launches are not written for adapters"
        yield TargetRefusal(message, ("training", "lora_rank"), f"set it to 0, or {ELSEWHERE}")
    if request.get("data.val") is not None and request.get("training.test_every") is not None:
        message = f"training.test_every: OpenRLHF tests with samples of its own [{COMMAND}: --eval.dataset]"
        yield TargetRefusal(message, ("training", "test_every"), "leave it out, and set `eval.*` in target_overrides")


def _rewards(request: PipelineRequest) -> Iterator[TargetRefusal]:
    function, model = request.get("reward.function"), request.get("models.reward")
    if model is not None and request.get("reward") is not None:
        message = f"reward: OpenRLHF takes rewards from a function or from a model [{MAKER}]"
        yield TargetRefusal(message, ("reward",), "remove `reward` or `models.reward`")
    if model is None and function is None:
        message = "reward.function: OpenRLHF has no verifier of its own"
        yield TargetRefusal(message, ("reward",), "name a function, or a model `reward`")


def _reference(request: PipelineRequest) -> Iterator[TargetRefusal]:
    if request.kl_where == "none" or request.get("models.reference") is None:
        return
    for key in ("config", "weights", "tokenizer"):
        actor, reference = request.get(f"models.actor.{key}"), request.get(f"models.reference.{key}")
        if actor != reference:
            message = f"models.reference.{key}: OpenRLHF's reference starts as the actor ({actor!r}), not {reference!r}"
            yield TargetRefusal(f"{message} [{COMMAND}]", ("models", "reference", key), "write `{like: actor}`")


def _stages(request: PipelineRequest) -> Iterator[TargetRefusal]:
    for name, stage in request.get("stages", {}).items():
        if stage is None or stage["op"] == "function":
            continue
        if PLACES.get((stage["op"], stage.get("model") or ""), "teacher") == "teacher":
            message = f"stages.{name}: OpenRLHF has no place for `{stage['op']}` of the model `{stage.get('model')}`"
            yield TargetRefusal(message, ("stages", name), places_hint("OpenRLHF"))


def _texts(request: PipelineRequest) -> Iterator[TargetRefusal]:
    for path, text in texts_of(request):
        key = ".".join(path)
        try:
            one_line(text, key)
        except InputError as error:
            yield TargetRefusal(error.message, path)
        cut = sorted(set(SPLITTERS.get(key, "")) & set(text))
        if cut:
            message = f"{key}: OpenRLHF would not read {text!r} as one path, for its `{cut[0]}` [{READER}]"
            yield TargetRefusal(message, path, "rename it")
        if text.startswith("~") and path[0] in ("data", "models"):
            message = f"{key}: nothing expands the `~` of {text!r} before OpenRLHF reads it"
            yield TargetRefusal(message, path, "write the whole path, or one relative to the folder of submission")


def _arguments(request: PipelineRequest) -> Iterator[TargetRefusal]:
    parts = stand_ins(request, critic=request.get("algorithm") == "ppo")
    try:
        arguments_of(request, parts, HYBRID, 0)
    except TargetRefusal as refusal:
        yield refusal


PIPELINE_CHECKS: tuple[Callable[[PipelineRequest], Iterator[TargetRefusal]], ...] = (
    _algorithm,
    _rewards,
    _reference,
    _stages,
    two_kinds_of_machine,
    no_such_engine,
    odd_stages,
    _texts,
    _arguments,
)


def check_plan(plan: Plan, facts: Facts | None = None) -> None:
    """Raise InputError for the first thing in the plan that OpenRLHF cannot run."""
    check_pipeline(plan.pipeline)
    request, parts = PipelineRequest(plan.pipeline), parts_of(plan, "OpenRLHF")
    if plan.target.name != "deepspeed" or plan.target.version not in ("", DEEPSPEED_VERSION):
        raise InputError(
            f"the plan is for {plan.target.name} {plan.target.version}; OpenRLHF runs on deepspeed {DEEPSPEED_VERSION}"
        )
    mode, shared, rollout = plan.graph.mode or HYBRID, parts.actor.mesh, parts.rollout.mesh
    if mode not in (HYBRID, SEPARATE):
        raise InputError(f"OpenRLHF launches are written for {HYBRID} and {SEPARATE}, not for {mode!r}")
    if parts.old_logprobs is None:
        raise InputError(f"OpenRLHF recomputes old log-probs in every step: the plan has no such stage [{MAKER}]")
    if (request.get("algorithm") == "ppo") != (parts.critic is not None and parts.values is not None):
        raise InputError(f"algorithm {request.get('algorithm')}: the plan must have a critic if and only if it is ppo")
    for part in (parts.old_logprobs, parts.reference, parts.critic, parts.values, parts.reward):
        if part is not None and part.mesh != shared:
            raise InputError(f"stage {part.name}: OpenRLHF runs it on the actor's GPUs, not on {part.mesh.name}")
    if (mode == HYBRID) != (rollout == shared) or (mode == SEPARATE and rollout.overlaps(shared)):
        raise InputError(f"stage {parts.rollout.name}: its GPUs are not those of mode {mode} [{COMMAND}]")
    if weight_distance(plan, parts.actor.name, parts.rollout.name) not in (None, 1):
        raise InputError("OpenRLHF generates with the weights of the step before")
    check_ties(plan, ties_for(plan.graph))
    for stage in plan.stages:
        if stage.layout is not None:
            check_rules(plan, stage, RULES[stage.op], request, (facts or {}).get(stage.name, {}))
