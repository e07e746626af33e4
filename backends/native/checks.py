"""What the native engine cannot run of a pipeline or a plan: refused before anything is searched or written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from backends.native.capabilities import VERSION, ties_for
from backends.native.rules import RULES
from rpegc.emit import Facts, TargetRefusal
from rpegc.errors import InputError
from rpegc.ir.graph import Op
from rpegc.plan import Plan
from rpegc.runtime.settings import ALGORITHMS, options_of

Pipeline = Mapping[str, Any]

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
FUNCTION_OUTPUTS = frozenset({"rewards", "advantages", "returns"})


def check_pipeline(pipeline: Pipeline) -> None:
    """Raise TargetRefusal for the first thing in a resolved pipeline that the engine cannot run."""
    for check in PIPELINE_CHECKS:
        for refusal in check(pipeline):
            raise refusal


def _algorithm(pipeline: Pipeline) -> Iterator[TargetRefusal]:
    if pipeline["algorithm"] not in ALGORITHMS:
        message = f"algorithm: the native engine does not run {pipeline['algorithm']!r}"
        yield TargetRefusal(message, ("algorithm",), f"it runs {', '.join(ALGORITHMS)}")


def _options(pipeline: Pipeline) -> Iterator[TargetRefusal]:
    try:
        options_of(pipeline)
    except InputError as error:
        path = ("target_overrides",) if error.message.startswith("target_overrides") else ("algorithm",)
        key = error.message.partition(":")[0].removeprefix("target_overrides.")
        yield TargetRefusal(error.message, (*path, key) if path == ("target_overrides",) else path, error.hint)


def _training(pipeline: Pipeline) -> Iterator[TargetRefusal]:
    training = pipeline["training"]
    if training["lora_rank"]:
        yield TargetRefusal(
            f"training.lora_rank: the native engine trains weights, not adapters (rank {training['lora_rank']})",
            ("training", "lora_rank"),
            "set it to 0, or take target: verl",
        )
    if training["test_every"] is not None:
        yield TargetRefusal(
            "training.test_every: the native engine does not test during a run",
            ("training", "test_every"),
            "leave it out, and judge checkpoints after the run",
        )


def _families(pipeline: Pipeline) -> Iterator[TargetRefusal]:
    for role, model in pipeline["architectures"].items():
        if model["family"] not in FAMILIES:
            message = f"models.{role}: the native engine does not run the family {model['family']!r}"
            yield TargetRefusal(message, ("models", role), f"it runs {', '.join(FAMILIES)}")


def _stages(pipeline: Pipeline) -> Iterator[TargetRefusal]:
    for name, stage in pipeline["stages"].items():
        if stage is None:
            continue
        outputs, path = set(stage.get("out") or ()), ("stages", name)
        if stage["op"] == "generate" and stage.get("model") != "actor":
            yield TargetRefusal(f"stages.{name}: the native engine generates with the actor alone", path)
        if stage["op"] == "function" and not outputs <= FUNCTION_OUTPUTS:
            what = ", ".join(sorted(outputs - FUNCTION_OUTPUTS))
            yield TargetRefusal(f"stages.{name}: the native engine has no function that makes {what}", path)
        if stage["op"] == "train" and stage.get("model") not in ("actor", "critic"):
            yield TargetRefusal(f"stages.{name}: the native engine trains actor and critic alone", path)


STAGE_KEYS = ("samples_per_prompt", "oversampling", "prompt_tokens", "response_tokens", "turns")
"""Keys of a stage of the user's that the engine's stages do not have: each works on the step's own sequences, once."""


def _stage_keys(pipeline: Pipeline) -> Iterator[TargetRefusal]:
    for name, stage in pipeline["stages"].items():
        for key in STAGE_KEYS:
            if stage is not None and stage.get(key) is not None:
                message = f"stages.{name}.{key}: the native engine runs stages on the step's sequences, in one turn"
                yield TargetRefusal(message, ("stages", name, key), "leave it out")


def _overlong(pipeline: Pipeline) -> Iterator[TargetRefusal]:
    if pipeline["reward"] is not None and pipeline["loss"]["overlong_buffer_tokens"]:
        message = "reward.overlong: the native engine does not punish length"
        yield TargetRefusal(message, ("reward", "overlong"), "let the reward function do it, and leave it out")


def _reward(pipeline: Pipeline) -> Iterator[TargetRefusal]:
    reward = pipeline["reward"]
    if reward is not None and not reward["function"]:
        hint = 'give `function: "path/to/file.py:name"`'
        yield TargetRefusal("reward.function: the native engine has no verifier of its own", ("reward",), hint)


PIPELINE_CHECKS: tuple[Callable[[Pipeline], Iterator[TargetRefusal]], ...] = (
    _algorithm,
    _options,
    _training,
    _families,
    _stages,
    _stage_keys,
    _overlong,
    _reward,
)


def check_plan(plan: Plan, facts: Facts | None = None) -> None:
    """Raise InputError for anything in a plan that the engine would refuse."""
    if plan.target.name != "native" or plan.target.version not in ("", VERSION):
        found = f"{plan.target.name} {plan.target.version}"
        raise InputError(f"the plan is for {found}; this backend writes for native {VERSION}")
    check_pipeline(plan.pipeline)
    _check_rules(plan, facts or {})
    _check_ties(plan)
    _check_tied_head(plan)


def _check_rules(plan: Plan, facts: Facts) -> None:
    for stage in plan.stages:
        if stage.layout is not None and stage.name in facts:
            for rule in RULES[stage.op]:
                rule.check(stage.layout, plan.mesh(stage.mesh).mesh_class, facts[stage.name], f"stage {stage.name}")


def _check_ties(plan: Plan) -> None:
    for tie in ties_for(plan.graph):
        stages = [plan.stage(name) for name in tie.stages]
        if len({stage.mesh for stage in stages}) > 1:
            listing = ", ".join(f"{stage.name} on {stage.mesh}" for stage in stages)
            raise InputError(f"passes over a trained model sit where it is trained: {listing} [{tie.source}]")
        for field in tie.fields:
            values = {stage.name: getattr(stage.layout, field) for stage in stages}
            if len(set(values.values())) > 1:
                listing = ", ".join(f"{name} {value}" for name, value in values.items())
                raise InputError(f"{field} must be equal in one model: {listing} [{tie.source}]")


def _check_tied_head(plan: Plan) -> None:
    for stage in plan.stages:
        tied = stage.model and plan.pipeline["architectures"][stage.model]["tied_embeddings"]
        head = plan.graph.stage(stage.name).attribute("head", "logits")
        pp = getattr(stage.layout, "pp", 1)
        if stage.op in (Op.TRAIN, Op.FORWARD) and tied and head == "logits" and pp > 1:
            message = f"stage {stage.name}: pp {pp} would part the embedding from the head, which are one matrix"
            raise InputError(f"{message} [rpegc/runtime/pipelining.py]", hint=f"fix: {{{stage.name}: {{pp: 1}}}}")
