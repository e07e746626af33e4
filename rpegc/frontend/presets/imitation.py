"""Presets that learn from comparisons or from a teacher: DPO, online DPO, on-policy distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpegc.frontend.presets import parts
from rpegc.frontend.presets.recipe import REWARD_VALUES, Loss, Preset, Recipe
from rpegc.ir.graph import Op

if TYPE_CHECKING:
    from rpegc.frontend.schema import PipelineSpec

PAIR = 2
"""Sequences of a pair: the chosen and the rejected one."""


def _learn_from_pairs() -> tuple[Recipe, ...]:
    """The reference's and the actor's log-probs of both sequences of a pair; the actor's are those of its update."""
    update = Recipe(
        "update_actor", Op.TRAIN, "actor", ("pairs", "reference_logprobs"), attributes=(("head", "logits"),)
    )
    reference = parts.forward("reference", "reference", ("pairs",), "reference_logprobs")
    return tuple(recipe.with_attributes(samples_per_prompt=PAIR) for recipe in (reference, update))


def _dpo(_: PipelineSpec) -> tuple[Recipe, ...]:
    """Pairs come from the data: nothing is generated."""
    return _learn_from_pairs()


def _online_dpo(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """Pairs are the best and the worst of the actor's own responses to a prompt."""
    rank = parts.small_function("rank", ("sequences",), ("pairs",))
    return (*parts.rollout_and_rewards(spec), rank, *_learn_from_pairs())


def _distill(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """The teacher judges each token of the actor's own responses; rewards may come on top."""
    compared = ("old_logprobs", "teacher_logprobs")
    return (
        *parts.rollout_and_rewards(spec),
        parts.old_logprobs(),
        parts.forward("teacher", "teacher", ("sequences",), "teacher_logprobs"),
        parts.small_function("advantages", compared, ("advantages",), REWARD_VALUES, rewarded=False),
        parts.update_actor(spec, "none"),
    )


_REFERENCE = ("reference", "the model that preferences are measured against")

PRESETS = (
    Preset(
        "dpo",
        "preferences of the data, nothing generated",
        "DPO, arXiv 2305.18290, section 4",
        _dpo,
        Loss("preference", "sequence-sum", "none"),
        least_samples=PAIR,
        most_samples=PAIR,
        judged=False,
        data=("prompts", "pairs"),
        needs=(_REFERENCE,),
    ),
    Preset(
        "online-dpo",
        "preferences between the actor's own responses",
        "OAIF, arXiv 2402.04792, section 3; best and worst of n: arXiv 2405.07863, section 3.2",
        _online_dpo,
        Loss("preference", "sequence-sum", "none"),
        least_samples=PAIR,
        needs=(_REFERENCE,),
    ),
    Preset(
        "distill",
        "on-policy distillation: a teacher judges own responses token by token",
        "GKD, arXiv 2306.13649, section 3; MiniLLM, arXiv 2306.08543",
        _distill,
        Loss("distillation", advantages="none"),
        needs=(("teacher", "the model that is imitated"),),
    ),
)
