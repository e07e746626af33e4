"""The presets `grpo` and `ppo` as stage macros: which stages there are, what each uses and makes.

A recipe names values; `expand.py` finds who makes each value and draws the edges. The values:

| value | made by | meaning |
|---|---|---|
| `prompts` | the data | not an edge: every step has its prompts when it starts |
| `sequences` | rollout | prompts with responses |
| `behaviour_logprobs` | rollout | log-probs of the responses as the generating engine saw them |
| `rewards` | verify | a program's judgement of each response |
| `model_rewards` | reward | a reward model's judgement of each response |
| `old_logprobs` | old_logprobs | log-probs under the actor before this step's updates (the proximal policy) |
| `reference_logprobs` | reference | log-probs under the reference |
| `values` | values | the critic's estimate for each token |
| `advantages`, `returns` | advantages | what the actor and the critic learn from |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rpegc.frontend.schema import PipelineSpec
from rpegc.frontend.schema_stage import StageSpec
from rpegc.ir.graph import Op, Scalar

EXTERNAL_VALUES = ("prompts",)
"""Values that come from the data, so that no stage makes them."""

REWARD_VALUES = ("rewards", "model_rewards")

ADVANTAGE_CPU_SECONDS_PER_SAMPLE = 2e-5
"""Seconds per sample to turn rewards into advantages, on one core. Provenance: assumed (a few vectorised passes over
one row of at most some 10^4 tokens)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A stage and the names of the values that it uses and makes.

    `optional` values are used if some stage makes them. `path` is the place in the pipeline file that asked for it.
    """

    name: str
    op: Op
    model: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Scalar], ...] = ()
    path: tuple[str, ...] = ("algorithm",)


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets, sorted."""
    return tuple(sorted(_PRESETS))


def stage_recipes(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """Return the stages of a pipeline: those of its preset, with the user's put in their place, added or removed."""
    recipes = {recipe.name: recipe for recipe in _PRESETS[spec.algorithm](spec)}
    for name, stage in spec.stages.items():
        if stage is None:
            recipes.pop(name, None)
        else:
            recipes[name] = _from_user(name, stage)
    return tuple(recipes.values())


def removed_outputs(spec: PipelineSpec) -> Mapping[str, str]:
    """Return the values that the preset would have made, had the user not removed or replaced the stage, by value."""
    return {
        value: recipe.name
        for recipe in _PRESETS[spec.algorithm](spec)
        for value in recipe.outputs
        if recipe.name in spec.stages
    }


def preset_stage_names(spec: PipelineSpec) -> tuple[str, ...]:
    """Return the names of the stages that the preset alone would make."""
    return tuple(recipe.name for recipe in _PRESETS[spec.algorithm](spec))


def trained_roles(spec: PipelineSpec) -> tuple[str, ...]:
    """Return the roles that some stage trains, in the order of the stages."""
    return tuple(dict.fromkeys(recipe.model for recipe in stage_recipes(spec) if recipe.op is Op.TRAIN))


def _from_user(name: str, stage: StageSpec) -> Recipe:
    op, attributes = Op(stage.op), dict[str, Scalar]()
    if op in (Op.FORWARD, Op.TRAIN):
        attributes["head"] = stage.head or "logits"
    if op is Op.FUNCTION:
        attributes["cpu_seconds_per_sample"] = stage.cpu_seconds_per_sample or 0.0
        attributes["workers_per_node"] = stage.workers_per_node or 1
    return Recipe(
        name=name,
        op=op,
        model=stage.model or "",
        inputs=stage.inputs,
        outputs=stage.outputs,
        attributes=tuple(sorted(attributes.items())),
        path=("stages", name),
    )


def _grpo(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """GRPO: advantages from the group of one prompt, no critic. DeepSeekMath, arXiv 2402.03300."""
    return (
        *_rollout_and_rewards(spec),
        _old_logprobs(),
        *_reference(spec),
        _advantages(spec, inputs=(), outputs=("advantages",)),
        _update_actor(spec),
    )


def _ppo(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """PPO: advantages from a critic that is trained beside the actor. arXiv 1707.06347, 2203.02155."""
    return (
        *_rollout_and_rewards(spec),
        _old_logprobs(),
        *_reference(spec),
        Recipe("values", Op.FORWARD, "critic", ("sequences",), ("values",), attributes=(("head", "scalar"),)),
        _advantages(spec, inputs=("values",), outputs=("advantages", "returns")),
        Recipe(
            "update_critic",
            Op.TRAIN,
            "critic",
            ("sequences", "values", "returns"),
            attributes=(("head", "scalar"),),
        ),
        _update_actor(spec),
    )


_PRESETS: Mapping[str, Callable[[PipelineSpec], tuple[Recipe, ...]]] = {"grpo": _grpo, "ppo": _ppo}


def _rollout_and_rewards(spec: PipelineSpec) -> tuple[Recipe, ...]:
    recipes = [Recipe("rollout", Op.GENERATE, "actor", ("prompts",), ("sequences", "behaviour_logprobs"))]
    if spec.reward is not None:
        attributes: tuple[tuple[str, Scalar], ...] = (
            ("cpu_seconds_per_sample", spec.reward.seconds_per_sample),
            ("workers_per_node", spec.reward.workers_per_node),
        )
        recipes.append(
            Recipe("verify", Op.FUNCTION, "", ("sequences",), ("rewards",), attributes=attributes, path=("reward",))
        )
    if "reward" in spec.models:
        recipes.append(
            Recipe("reward", Op.FORWARD, "reward", ("sequences",), ("model_rewards",), attributes=(("head", "scalar"),))
        )
    return tuple(recipes)


def _old_logprobs() -> Recipe:
    return Recipe(
        "old_logprobs", Op.FORWARD, "actor", ("sequences",), ("old_logprobs",), attributes=(("head", "logits"),)
    )


def _reference(spec: PipelineSpec) -> tuple[Recipe, ...]:
    if "reference" not in spec.models:
        return ()
    attributes: tuple[tuple[str, Scalar], ...] = (("head", "logits"),)
    return (
        Recipe("reference", Op.FORWARD, "reference", ("sequences",), ("reference_logprobs",), attributes=attributes),
    )


def _kl_inputs(spec: PipelineSpec, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (needed, optional) inputs for the KL penalty of the stage that stands at `where`.

    With a coefficient of 0 the edge is still drawn if there is a reference: dropping it is the work of a pass.
    """
    if spec.training.kl.where != where:
        return (), ()
    if spec.training.kl.coefficient > 0:
        return ("reference_logprobs",), ()
    return (), ("reference_logprobs",)


def _advantages(spec: PipelineSpec, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Recipe:
    """The advantage estimate; a KL penalty in the reward compares old and reference log-probs here."""
    needed, optional = _kl_inputs(spec, "reward")
    compared = ("old_logprobs",) if needed or ("reference" in spec.models and optional) else ()
    return Recipe(
        "advantages",
        Op.FUNCTION,
        "",
        inputs=(*inputs, *compared, *needed),
        outputs=outputs,
        optional=(*REWARD_VALUES, *optional),
        attributes=(("cpu_seconds_per_sample", ADVANTAGE_CPU_SECONDS_PER_SAMPLE), ("workers_per_node", 1)),
    )


def _update_actor(spec: PipelineSpec) -> Recipe:
    needed, optional = _kl_inputs(spec, "loss")
    return Recipe(
        "update_actor",
        Op.TRAIN,
        "actor",
        ("sequences", "behaviour_logprobs", "old_logprobs", "advantages", *needed),
        optional=optional,
        attributes=(("head", "logits"),),
    )
