"""What TRL's GRPO cannot carry out of a pipeline, whatever the plan: refused with its place before the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from backends.deepspeed.overrides import settings_with_overrides
from backends.deepspeed.request import Request
from backends.deepspeed.run import possible_runs
from backends.request import NOWHERE_YET, no_such_engine, odd_stages, texts_of, two_kinds_of_machine
from backends.roles import PLACES, places_hint
from rpegc.emit import TargetRefusal, one_line
from rpegc.errors import InputError

TRAINER = "trl/trainer/grpo_trainer.py"
ELSEWHERE = "write `target_flavour: openrlhf` (or give --flavour openrlhf), or `target: verl`"

FUNCTION_OUTPUTS = frozenset({"rewards", "advantages"})


def check_pipeline(pipeline: Mapping[str, Any]) -> None:
    """Raise TargetRefusal for the first thing in a resolved pipeline that no plan on TRL could carry out."""
    request = Request(pipeline)
    for check in PIPELINE_CHECKS:
        for refusal in check(request):
            raise refusal


def _algorithm(request: Request) -> Iterator[TargetRefusal]:
    algorithm = str(request.get("algorithm", ""))
    if algorithm != "grpo":
        message = f"algorithm: TRL's GRPOTrainer runs grpo, and has no critic: {algorithm} needs another [{TRAINER}]"
        yield TargetRefusal(message, ("algorithm",), NOWHERE_YET.get(algorithm, ELSEWHERE))


def _words(request: Request) -> Iterator[TargetRefusal]:
    for path, default in (("training.precision", "bf16"), ("training.optimizer", "adamw")):
        value = request.get(path, default)
        if value != default:
            message = f"{path}: TRL launches are not written for {value!r}"
            yield TargetRefusal(message, tuple(path.split(".")), f"allowed: {default}")


def _penalty(request: Request) -> Iterator[TargetRefusal]:
    if request.kl_where == "none":
        return
    if request.kl_where == "reward":
        message = f"training.kl.where: TRL's penalty is a term of the loss, not of the reward [{TRAINER}]"
        yield TargetRefusal(message, ("training", "kl", "where"), f"write `where: loss`; or {ELSEWHERE}")
    elif request.get("training.kl.estimator", "k3") != "k3":
        given = request.get("training.kl.estimator")
        message = f"training.kl.estimator: TRL estimates the divergence with k3, not {given} [{TRAINER}]"
        yield TargetRefusal(message, ("training", "kl", "estimator"), f"write `estimator: k3`; or {ELSEWHERE}")


def _models(request: Request) -> Iterator[TargetRefusal]:
    if request.get("models.reward") is not None:
        message = (
            "models.reward: TRL has a reward model judge all samples of a GPU in one batch, beside the actor "
            f"[{TRAINER}: _calculate_rewards]; no plan is made for that"
        )
        yield TargetRefusal(message, ("models", "reward"), f"write a `reward` function; or {ELSEWHERE}")
    if request.kl_where == "none" or request.get("models.reference") is None:
        return
    for key in ("config", "weights", "tokenizer"):
        actor, reference = request.get(f"models.actor.{key}"), request.get(f"models.reference.{key}")
        if actor != reference:
            message = (
                f"models.reference.{key}: TRL's reference is the actor as it starts ({actor!r}), not {reference!r} "
                f"[{TRAINER}]"
            )
            yield TargetRefusal(message, ("models", "reference", key), "write `reference: {like: actor}`")


def _stages(request: Request) -> Iterator[TargetRefusal]:
    for name, stage in request.get("stages", {}).items():
        if stage is None:
            continue
        path, role = ("stages", name), stage.get("model") or ""
        if stage["op"] == "function":
            made = set(stage.get("out") or ())
            unknown = sorted(made - FUNCTION_OUTPUTS) if made else ["nothing"]
            if unknown:
                message = f"stages.{name}: TRL runs one reward function and the advantages, no maker of "
                yield TargetRefusal(message + ", ".join(unknown), path, "make `rewards` of it, or remove it")
        elif PLACES.get((stage["op"], role)) in (None, "critic", "values", "reward", "teacher"):
            message = f"stages.{name}: TRL has no place for `{stage['op']}` of the model `{role}` [{TRAINER}]"
            yield TargetRefusal(message, path, f"{places_hint('verl')}; write `target: verl` for that")


def _texts(request: Request) -> Iterator[TargetRefusal]:
    """No text of the user's ends a line: preflight and scripts hold one a line."""
    for path, text in texts_of(request):
        try:
            one_line(text, ".".join(path))
        except InputError as error:
            yield TargetRefusal(error.message, path)


def _settings(request: Request) -> Iterator[TargetRefusal]:
    """No override of the user's touches a key that a plan decides, or that no part of the target reads."""
    for run in possible_runs(request):
        try:
            settings_with_overrides(run)
        except TargetRefusal as refusal:
            yield refusal


PIPELINE_CHECKS: tuple[Callable[[Request], Iterator[TargetRefusal]], ...] = (
    _algorithm,
    _words,
    _penalty,
    _models,
    _stages,
    two_kinds_of_machine,
    no_such_engine,
    odd_stages,
    _texts,
    _settings,
)
