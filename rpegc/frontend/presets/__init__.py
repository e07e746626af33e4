"""Presets as stage macros: which stages an algorithm has, what each uses and makes, and how its loss is put together.

`recipe.py` holds the words, one file a family the presets, `users.py` the user's own stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from rpegc.frontend.presets.parts import ADVANTAGE_CPU_SECONDS_PER_SAMPLE
from rpegc.frontend.presets.policy_gradient import OVERLONG_SHARE
from rpegc.frontend.presets.recipe import REWARD_VALUES, Loss, Preset, Recipe
from rpegc.frontend.presets.users import user_recipe
from rpegc.ir.graph import Op

if TYPE_CHECKING:
    from rpegc.frontend.schema import PipelineSpec

__all__ = [
    "ADVANTAGE_CPU_SECONDS_PER_SAMPLE",
    "REWARD_VALUES",
    "Loss",
    "Preset",
    "Recipe",
    "all_presets",
    "loss_of",
    "overlong_buffer",
    "oversampling_of",
    "preset_names",
    "preset_of",
    "preset_stage_names",
    "removed_outputs",
    "stage_recipes",
    "trained_roles",
]


@cache
def all_presets() -> Mapping[str, Preset]:
    """Return every preset by name, in the order of the names."""
    from rpegc.frontend.presets import imitation, policy_gradient

    known = {preset.name: preset for preset in (*policy_gradient.PRESETS, *imitation.PRESETS)}
    return {name: known[name] for name in sorted(known)}


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets, sorted."""
    return tuple(all_presets())


def preset_of(spec: PipelineSpec) -> Preset:
    """Return the preset of a pipeline whose algorithm is known to be one."""
    return all_presets()[spec.algorithm]


def loss_of(spec: PipelineSpec) -> Loss:
    """Return the loss of a pipeline: the preset's, with what the user says about clipping and KL in its place."""
    loss, training = preset_of(spec).loss, spec.training
    return replace(
        loss,
        clip=training.clip or loss.clip,
        kl_where=training.kl.where or loss.kl_where,
        kl_estimator=training.kl.estimator or loss.kl_estimator,
    )


def oversampling_of(spec: PipelineSpec) -> float:
    """Return the prompts generated for each prompt that is trained on; 1 without dynamic sampling."""
    return float(spec.workload.oversampling or preset_of(spec).oversampling or 1.0)


def overlong_buffer(spec: PipelineSpec) -> tuple[int, float]:
    """Return (tokens before the longest response in which length is punished, the most that is taken off the reward).

    Both are 0 without such a punishment. `dapo` has one where a program gives the reward.
    """
    if spec.reward is None:
        return 0, 0.0
    given = spec.reward.overlong
    if given is not None:
        return (given.buffer_tokens, given.penalty) if given.penalty else (0, 0.0)
    if spec.algorithm != "dapo":
        return 0, 0.0
    return max(1, int(OVERLONG_SHARE * spec.workload.response_tokens.longest)), 1.0


def stage_recipes(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """Return the stages of a pipeline: those of its preset, with the user's put in their place, added or removed."""
    recipes = {recipe.name: recipe for recipe in preset_of(spec).stages(spec)}
    generated = {value: r for r in recipes.values() if r.op is Op.GENERATE for value in r.outputs}
    for name, stage in spec.stages.items():
        if stage is None:
            recipes.pop(name, None)
        else:
            recipes[name] = user_recipe(name, stage, spec, generated)
    return tuple(recipes.values())


def removed_outputs(spec: PipelineSpec) -> Mapping[str, str]:
    """Return the values that the preset would have made, had the user not removed or replaced the stage, by value."""
    return {
        value: recipe.name
        for recipe in preset_of(spec).stages(spec)
        for value in recipe.outputs
        if recipe.name in spec.stages
    }


def preset_stage_names(spec: PipelineSpec) -> tuple[str, ...]:
    """Return the names of the stages that the preset alone would make."""
    return tuple(recipe.name for recipe in preset_of(spec).stages(spec))


def trained_roles(spec: PipelineSpec) -> tuple[str, ...]:
    """Return the roles that some stage trains, in the order of the stages."""
    return tuple(dict.fromkeys(recipe.model for recipe in stage_recipes(spec) if recipe.op is Op.TRAIN))
