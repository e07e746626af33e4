"""What verl 0.9.1 cannot carry out of a pipeline, whatever the plan: refused with its place before the search.

The table `PIPELINE_CHECKS` is in the order in which the refusals are looked for. Whatever a plan decides is checked in
`checks.py`, which repeats these first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from backends.layout_rules import VLLM_MAXIMUM_LORA_RANK
from backends.roles import PLACES, PRESET_STAGES, places_hint
from backends.verl.capabilities import ENGINES, FSDP
from backends.verl.engines import engine_refusals, possible_engines
from backends.verl.request import KL_ESTIMATORS, PRECISIONS, Request
from rpegc.emit import TargetRefusal

TRAINER = "verl/trainer/ppo/v1/trainer_base.py"
REWARD_LOOP = "verl/experimental/reward_loop/reward_loop.py"

FUNCTION_OUTPUTS = frozenset({"rewards", "advantages", "returns"})
REWARD_INPUTS = frozenset({"prompts", "sequences"})


def check_pipeline(pipeline: Mapping[str, Any]) -> None:
    """Raise TargetRefusal for the first thing in a resolved pipeline that no plan on verl could carry out."""
    request = Request(pipeline)
    for check in PIPELINE_CHECKS:
        for refusal in check(request):
            raise refusal


def _algorithm(request: Request) -> Iterator[TargetRefusal]:
    """The algorithm is one that verl has; a teacher reads one token more than the longest sequence."""
    _ = request.estimator
    if not request.distils:
        return
    longest, positions = request.max_prompt_tokens + request.max_response_tokens + 1, "architectures.teacher"
    known = request.get(f"{positions}.max_positions")
    if known is not None and longest > known:
        message = (
            f"models.teacher: verl's teacher reads {longest} tokens, one more than the longest sequence, of {known}"
        )
        yield TargetRefusal(f"{message} [verl/workers/config/distillation.py]", ("models", "teacher"))


def _pools(request: Request) -> Iterator[TargetRefusal]:
    """Ray places by resources; verl's pools ask for GPUs and can name no type of them."""
    if request.get("cluster.pools") is not None:
        message = (
            "cluster.pools: verl cannot direct a role to a type of GPU: no setting reaches the `accelerator_type` "
        )
        message += "of its resource pools [verl/single_controller/ray/base.py: ResourcePoolManager]"
        hint = "use `target: native`, or give one kind of machine (`hardware`, `nodes`)"
        yield TargetRefusal(message, ("cluster", "pools"), hint)


STAGE_KEYS = {
    "samples_per_prompt": "generates `workload.samples_per_prompt` responses to each prompt",
    "oversampling": "generates what its trainer asks for",
    "prompt_tokens": "has one longest prompt",
    "response_tokens": "has one longest response",
    "turns": "needs an agent loop of yours for several turns, which launches are not written for",
}
"""Keys of a stage of the user's that launches cannot carry out, and what verl does instead."""


def _stage_keys(request: Request) -> Iterator[TargetRefusal]:
    for name, stage in request.get("stages", {}).items():
        for key, instead in STAGE_KEYS.items():
            if stage is not None and stage.get(key) is not None:
                message = f"stages.{name}.{key}: verl {instead} [verl/experimental/agent_loop/agent_loop.py]"
                yield TargetRefusal(message, ("stages", name, key), "leave it out, or use another target")


def _words(request: Request) -> Iterator[TargetRefusal]:
    known = (
        ("training.precision", "bf16", tuple(PRECISIONS)),
        ("training.optimizer", "adamw", ("adamw",)),
        ("training.kl.estimator", "k3", tuple(KL_ESTIMATORS)),
    )
    for path, default, allowed in known:
        value = request.get(path, default)
        if value not in allowed:
            message = f"{path}: verl launches are not written for {value!r}"
            yield TargetRefusal(message, tuple(path.split(".")), f"allowed: {', '.join(allowed)}")


def _batches(request: Request) -> Iterator[TargetRefusal]:
    if request.prompts % request.minibatches:
        yield TargetRefusal(
            f"workload.minibatches_per_step: {request.minibatches} must divide the {request.prompts} prompts of a "
            f"step; verl would pad the last update [{TRAINER}]",
            ("workload", "minibatches_per_step"),
        )


def _stages(request: Request) -> Iterator[TargetRefusal]:
    """Each stage of the user's is a part of verl's pipeline that no other stage plays."""
    present = parts_wanted(request)
    stages: Mapping[str, Any] = request.get("stages", {})
    taken = {part: name for part, name in PRESET_STAGES.items() if part in present and name not in stages}
    for name, stage in stages.items():
        if stage is None:
            continue
        path, op, role = ("stages", name), stage["op"], stage.get("model") or ""
        if op == "function":
            yield from _function(name, stage)
            continue
        part = PLACES.get((op, role))
        if part is None:
            message = f"stages.{name}: verl has no place for `{op}` of the model `{role}`"
            yield TargetRefusal(message, path, places_hint("verl"))
        elif part in taken:
            message = f"stages.{name}: verl has one place for {part}, already taken by {taken[part]} [{TRAINER}]"
            yield TargetRefusal(message, path, f"name the stage `{taken[part]}` to put it in its place")
        elif part not in present:
            message = f"stages.{name}: {request.get('algorithm')} on verl has no {part} [{TRAINER}]"
            yield TargetRefusal(message, path, "remove the stage")
        else:
            taken[part] = name
    for part in sorted(present - set(taken)):
        name = PRESET_STAGES[part]
        message = f"stages.{name}: {request.get('algorithm')} on verl needs {part}, and no stage is it [{TRAINER}]"
        yield TargetRefusal(message, ("stages", name), f"leave `{name}` as the preset makes it")


def parts_wanted(request: Request) -> frozenset[str]:
    """Return the parts of verl's pipeline that the algorithm and the models call for."""
    wanted = {"rollout", "old_logprobs", "actor"}
    wanted |= {"values", "critic"} if request.needs_critic else set()
    return frozenset(
        wanted | {role for role in ("reference", "reward", "teacher") if request.get(f"models.{role}") is not None}
    )


def _function(name: str, stage: Mapping[str, Any]) -> Iterator[TargetRefusal]:
    inputs, outputs = set(stage.get("in") or ()), set(stage.get("out") or ())
    unknown = sorted(outputs - FUNCTION_OUTPUTS)
    if unknown or not outputs:
        what = ", ".join(unknown) or "a function that makes nothing"
        message = f"stages.{name}: verl runs one reward function and the advantages; it has no place for {what}"
        yield TargetRefusal(f"{message} [{REWARD_LOOP}]", ("stages", name), "make `rewards` of it, or remove it")
    elif "rewards" in outputs and not inputs <= REWARD_INPUTS:
        message = f"stages.{name}: verl gives a reward function the texts of one sample, not "
        message += ", ".join(sorted(inputs - REWARD_INPUTS))
        yield TargetRefusal(f"{message} [{REWARD_LOOP}]", ("stages", name), "let it use `sequences` alone")


def _rewards(request: Request) -> Iterator[TargetRefusal]:
    if request.get("models.reward") is None:
        return
    makers: list[tuple[str, ...]] = [("reward",)] if request.get("reward") is not None else []
    for name, stage in request.get("stages", {}).items():
        if stage is not None and "rewards" in (stage.get("out") or ()):
            makers.append(("stages", name))
    for path in makers:
        yield TargetRefusal(
            "verl takes rewards from a function or from a model, and the pipeline has both "
            f"[{REWARD_LOOP}: compute_score]",
            path,
            f"remove `{'.'.join(path)}` or `models.reward`",
        )


def _reference(request: Request) -> Iterator[TargetRefusal]:
    """Without adapters the reference is loaded from the actor's path; with them it is the actor without its own."""
    if request.kl_where == "none" or request.get("models.reference") is None:
        return
    if request.lora_rank:
        if request.get("models.reference.like") != "actor":
            yield TargetRefusal(
                f"models.reference: with LoRA (rank {request.lora_rank}) verl's reference is the actor without its "
                f"adapter [{TRAINER}: ref_in_actor]",
                ("models", "reference"),
                "write `reference: {like: actor}`, or set training.lora_rank to 0",
            )
        return
    for key in ("config", "weights", "tokenizer"):
        actor, reference = request.get(f"models.actor.{key}"), request.get(f"models.reference.{key}")
        if actor != reference:
            yield TargetRefusal(
                f"models.reference.{key}: verl loads the reference from the actor's path ({actor!r}), "
                f"not {reference!r} [verl/workers/engine_workers.py]",
                ("models", "reference", key),
                "write `reference: {like: actor}`",
            )


def _adapters(request: Request) -> Iterator[TargetRefusal]:
    rank, path = request.lora_rank, ("training", "lora_rank")
    if rank > VLLM_MAXIMUM_LORA_RANK:
        yield TargetRefusal(
            f"training.lora_rank: {rank} must be at most {VLLM_MAXIMUM_LORA_RANK}, or vLLM cannot serve the adapter "
            "[vllm/config/lora.py: MaxLoRARanks]",
            path,
        )
    if rank and request.needs_critic:
        # FSDPEngine._build_lora_module asks peft for a causal language model, which reads the model's
        # `prepare_inputs_for_generation`; the token classifier that is verl's critic has none (AttributeError; run on
        # Qwen3, Llama and Qwen3-MoE with transformers 5.9.0 and peft 0.21.2).
        yield TargetRefusal(
            f"training.lora_rank: verl cannot train a critic with adapters (rank {rank}): it wraps the critic as a "
            "language model and crashes [verl/workers/engine/fsdp/transformer_impl.py: _build_lora_module]",
            path,
            f"set it to 0, or use an algorithm without critic instead of {request.get('algorithm')}, such as grpo",
        )


def _engines(request: Request) -> Iterator[TargetRefusal]:
    """Some training engine is known, runs the models, and lets every text and override of the user's through."""
    if request.pinned_engine and request.pinned_engine not in ENGINES:
        message = f"engine: verl launches are not written for {request.pinned_engine!r}"
        yield TargetRefusal(message, ("engine",), f"allowed: {', '.join(ENGINES)}")
        return
    if not possible_engines(request):
        yield from engine_refusals(request, request.pinned_engine or FSDP)


PIPELINE_CHECKS: tuple[Callable[[Request], Iterator[TargetRefusal]], ...] = (
    _algorithm,
    _pools,
    _words,
    _batches,
    _stages,
    _stage_keys,
    _rewards,
    _reference,
    _adapters,
    _engines,
)
