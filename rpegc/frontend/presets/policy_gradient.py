"""Presets that follow the policy gradient on responses of their own: GRPO and its kin, RLOO, REINFORCE++, ReMax, PPO.

Structure is the same but for where the baseline comes from; the rest is in the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpegc.frontend.presets import parts
from rpegc.frontend.presets.recipe import Loss, Preset, Recipe
from rpegc.ir.graph import Op

if TYPE_CHECKING:
    from rpegc.frontend.schema import PipelineSpec

DAPO_OVERSAMPLING = 1.5
"""Prompts generated for each prompt kept. Provenance: assumed: a third of the groups is all right or all wrong. The
share grows while the actor learns (arXiv 2503.14476, figure 3b); count it in your own run."""

OVERLONG_SHARE = 0.2
"""Share of the longest response in which length is punished: 4096 of 20480 tokens (arXiv 2503.14476, section 4.1)."""


def without_critic(spec: PipelineSpec, kl_where: str) -> tuple[Recipe, ...]:
    """Generate, judge, compare the rewards with each other, update."""
    return (
        *parts.rollout_and_rewards(spec),
        parts.old_logprobs(),
        *parts.reference(spec),
        parts.advantages(spec, kl_where),
        parts.update_actor(spec, kl_where),
    )


def _where(spec: PipelineSpec, default: str) -> str:
    return spec.training.kl.where or default


def _in_loss(spec: PipelineSpec) -> tuple[Recipe, ...]:
    return without_critic(spec, _where(spec, "loss"))


def _in_reward(spec: PipelineSpec) -> tuple[Recipe, ...]:
    return without_critic(spec, _where(spec, "reward"))


def _dapo(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """All generated groups are judged; only those with different rewards go on."""
    generated = spec.workload.oversampling or DAPO_OVERSAMPLING
    judged = tuple(recipe.with_attributes(oversampling=float(generated)) for recipe in parts.rollout_and_rewards(spec))
    select = parts.small_function("select", ("sequences",), ("selected",)).with_attributes(
        oversampling=float(generated)
    )
    rest = without_critic(spec, _where(spec, "loss"))[len(judged) :]
    return (*judged, select, *parts.reading(rest, "sequences", "selected"))


def _remax(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """One engine decodes the sampled responses and the greedy one of each prompt as one batch; all are judged."""
    together = spec.workload.samples_per_prompt + 1
    rollout = Recipe(
        "rollout", Op.GENERATE, "actor", ("prompts",), ("sequences", "greedy_sequences", "behaviour_logprobs")
    )
    judged = (rollout, *parts.rewards(spec, ("sequences", "greedy_sequences")))
    rest = _in_reward(spec)[len(judged) :]
    return (*(recipe.with_attributes(samples_per_prompt=together) for recipe in judged), *rest)


def _ppo(spec: PipelineSpec) -> tuple[Recipe, ...]:
    """A critic gives the baseline of every token, and is trained beside the actor."""
    where = _where(spec, "loss")
    return (
        *parts.rollout_and_rewards(spec),
        parts.old_logprobs(),
        *parts.reference(spec),
        parts.forward("values", "critic", ("sequences",), "values", head="scalar"),
        parts.advantages(spec, where, inputs=("values",), outputs=("advantages", "returns")),
        Recipe(
            "update_critic",
            Op.TRAIN,
            "critic",
            ("sequences", "values", "returns"),
            attributes=(("head", "scalar"),),
        ),
        parts.update_actor(spec, where),
    )


PRESETS = (
    Preset(
        "grpo",
        "group-relative advantages, no critic",
        "DeepSeekMath, arXiv 2402.03300, section 4.1",
        _in_loss,
        Loss(),
        least_samples=2,
    ),
    Preset(
        "dapo",
        "GRPO that generates until enough groups differ, clips higher, no KL penalty",
        "DAPO, arXiv 2503.14476, section 3",
        _dapo,
        Loss(clip=(0.2, 0.28)),
        least_samples=2,
        oversampling=DAPO_OVERSAMPLING,
    ),
    Preset(
        "dr-grpo",
        "GRPO without division by deviation and by length",
        "Dr. GRPO, arXiv 2503.20783, section 3.2",
        _in_loss,
        Loss(aggregation="sequence-sum-over-longest", advantages="group-centred"),
        least_samples=2,
    ),
    Preset(
        "gspo",
        "GRPO with one ratio a sequence",
        "GSPO, arXiv 2507.18071, section 4 and 5.1",
        _in_loss,
        Loss("sequence-clipped", "sequence-mean", clip=(3e-4, 4e-4)),
        least_samples=2,
    ),
    Preset(
        "cispo",
        "GRPO that clips the weights of tokens, never their gradients",
        "MiniMax-M1, arXiv 2506.13585, section 3.1; clip range of verl's example cispo_trainer",
        _in_loss,
        Loss("clipped-weight", clip=(10.0, 0.2)),
        least_samples=2,
    ),
    Preset(
        "rloo",
        "REINFORCE with the mean of the other samples as baseline",
        "RLOO, arXiv 2402.14740, section 2.2 and 3",
        _in_reward,
        Loss(aggregation="sequence-sum", advantages="leave-one-out", kl_where="reward", kl_estimator="k1"),
        least_samples=2,
    ),
    Preset(
        "reinforce++",
        "REINFORCE with advantages normalised over the batch, no critic",
        "REINFORCE++, arXiv 2501.03262, section 3",
        _in_reward,
        Loss(advantages="batch-normalised", kl_where="reward", kl_estimator="k1"),
    ),
    Preset(
        "remax",
        "REINFORCE with the reward of the greedy response as baseline",
        "ReMax, arXiv 2310.10505, section 4",
        _remax,
        Loss(aggregation="sequence-sum", advantages="greedy", kl_where="reward", kl_estimator="k1"),
    ),
    Preset(
        "ppo",
        "advantages from a critic that is trained beside the actor",
        "PPO, arXiv 1707.06347; InstructGPT, arXiv 2203.02155",
        _ppo,
        Loss(advantages="critic"),
    ),
)
