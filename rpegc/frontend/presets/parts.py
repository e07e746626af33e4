"""The stages that several presets share, each as a function of the pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rpegc.frontend.presets.recipe import REWARD_VALUES, Recipe
from rpegc.ir.graph import Op, Scalar

if TYPE_CHECKING:
    from rpegc.frontend.schema import PipelineSpec

ADVANTAGE_CPU_SECONDS_PER_SAMPLE = 2e-5
"""Seconds per sample to turn rewards into advantages, on one core. Provenance: assumed (a few vectorised passes over
one row of at most some 10^4 tokens). Ranking and selecting groups is taken to cost the same."""


def rollout_and_rewards(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """Generate, and judge by program, by model or by both."""
    return (Recipe("rollout", Op.GENERATE, "actor", ("prompts",), ("sequences", "behaviour_logprobs")), *rewards(spec))


def rewards(spec: PipelineSpec, judged: tuple[str, ...] = ("sequences",)) -> tuple[Recipe, ...]:
    """Judge by program, by model or by both, as the pipeline says."""
    recipes = []
    if spec.reward is not None:
        attributes: tuple[tuple[str, Scalar], ...] = (
            ("cpu_seconds_per_sample", spec.reward.seconds_per_sample),
            ("workers_per_node", spec.reward.workers_per_node),
        )
        recipes.append(Recipe("verify", Op.FUNCTION, "", judged, ("rewards",), attributes=attributes, path=("reward",)))
    if "reward" in spec.models:
        recipes.append(forward("reward", "reward", judged, "model_rewards", head="scalar"))
    return tuple(recipes)


def forward(name: str, model: str, inputs: tuple[str, ...], output: str, head: str = "logits") -> Recipe:
    """One pass of a model over finished sequences."""
    return Recipe(name, Op.FORWARD, model, inputs, (output,), attributes=(("head", head),))


def old_logprobs() -> Recipe:
    """Recompute the log-probs before the updates."""
    return forward("old_logprobs", "actor", ("sequences",), "old_logprobs")


def reference(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """The reference's log-probs, if there is a reference."""
    if "reference" not in spec.models:
        return ()
    return (forward("reference", "reference", ("sequences",), "reference_logprobs"),)


def small_function(
    name: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    optional: tuple[str, ...] = REWARD_VALUES,
    rewarded: bool = True,
) -> Recipe:
    """A function of a few vectorised passes on one core: advantages, selection, ranking."""
    attributes: tuple[tuple[str, Scalar], ...] = (
        ("cpu_seconds_per_sample", ADVANTAGE_CPU_SECONDS_PER_SAMPLE),
        ("workers_per_node", 1),
    )
    return Recipe(name, Op.FUNCTION, "", inputs, outputs, optional, attributes, rewarded)


def advantages(
    spec: PipelineSpec, kl_where: str, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = ("advantages",)
) -> Recipe:
    """The advantage estimate; a KL penalty in the reward compares old and reference log-probs here."""
    needed, optional = _kl_inputs(spec, kl_where, "reward")
    compared = ("old_logprobs",) if needed or ("reference" in spec.models and optional) else ()
    return small_function("advantages", (*inputs, *compared, *needed), outputs, (*REWARD_VALUES, *optional))


def update_actor(spec: PipelineSpec, kl_where: str) -> Recipe:
    """The actor's optimizer updates on ratios to the old log-probs."""
    needed, optional = _kl_inputs(spec, kl_where, "loss")
    return Recipe(
        "update_actor",
        Op.TRAIN,
        "actor",
        ("sequences", "behaviour_logprobs", "old_logprobs", "advantages", *needed),
        optional=optional,
        attributes=(("head", "logits"),),
    )


def reading(recipes: tuple[Recipe, ...], old: str, new: str) -> tuple[Recipe, ...]:
    """Return the recipes with one value among their inputs replaced by another."""
    return tuple(replace(r, inputs=tuple(new if value == old else value for value in r.inputs)) for r in recipes)


def _kl_inputs(spec: PipelineSpec, kl_where: str, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (needed, optional) inputs for the KL penalty of the stage that stands at `where`.

    With a coefficient of 0 the edge is still drawn if there is a reference: dropping it is the work of a pass.
    """
    if kl_where != where:
        return (), ()
    if spec.training.kl.coefficient > 0:
        return ("reference_logprobs",), ()
    return (), ("reference_logprobs",)
