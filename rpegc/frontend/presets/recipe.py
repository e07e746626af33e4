"""What a preset is made of: recipes of stages, and how its loss is put together.

A recipe names values; `expand.py` finds who makes each value and draws the edges. The values:

| value | made by | meaning |
|---|---|---|
| `prompts` | the data | not an edge: every step has its prompts when it starts |
| `pairs` | the data, or rank | a chosen and a rejected response to each prompt |
| `sequences` | rollout | prompts with responses |
| `greedy_sequences` | rollout | one more response to each prompt, decoded greedily |
| `behaviour_logprobs` | rollout | log-probs of the responses as the generating engine saw them |
| `rewards` | verify | a program's judgement of each response |
| `model_rewards` | reward | a reward model's judgement of each response |
| `selected` | select | the sequences of the groups that have something to learn from |
| `old_logprobs` | old_logprobs | log-probs under the actor before this step's updates (the proximal policy) |
| `reference_logprobs` | reference | log-probs under the reference |
| `teacher_logprobs` | teacher | log-probs under the teacher |
| `values` | values | the critic's estimate for each token |
| `advantages`, `returns` | advantages | what the actor and the critic learn from |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rpegc.ir.graph import Op, Scalar

if TYPE_CHECKING:
    from rpegc.frontend.schema import PipelineSpec

REWARD_VALUES = ("rewards", "model_rewards")

LOSS_KINDS = ("clipped", "sequence-clipped", "clipped-weight", "preference", "distillation")
"""`clipped`: PPO's ratio of tokens, clipped (arXiv 1707.06347, eq. 7). `sequence-clipped`: one ratio a sequence, the
geometric mean over its tokens (arXiv 2507.18071, eq. 5 to 7). `clipped-weight`: the clipped ratio, detached, weights
the log-probs' gradient (arXiv 2506.13585, eq. 4 and 5). `preference`: -log sigmoid of beta times the difference of
log-ratios of a pair (arXiv 2305.18290, eq. 7). `distillation`: the policy gradient whose advantage is the negative
reverse KL divergence to the teacher, token by token."""

AGGREGATIONS = ("token-mean", "sequence-mean", "sequence-sum", "sequence-sum-over-longest")
"""How token losses become one number: over all tokens alike; the mean over each sequence's tokens, then over
sequences; the sum over each sequence's tokens, then the mean over sequences; that sum over the longest length."""

ADVANTAGES = ("group-normalised", "group-centred", "leave-one-out", "batch-normalised", "greedy", "critic", "none")
"""What a reward is compared with: the mean of its group, over the group's deviation or not; the mean of the others of
its group; the mean and deviation of the whole batch; the reward of the greedy response; a critic's estimate."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A stage and the names of the values that it uses and makes.

    `optional` values are used if some stage makes them; with `rewarded` at least one of `REWARD_VALUES` must be among
    them. `path` is the place in the pipeline file that asked for it.
    """

    name: str
    op: Op
    model: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Scalar], ...] = ()
    rewarded: bool = False
    path: tuple[str, ...] = ("algorithm",)

    def with_attributes(self, **changes: Scalar) -> Recipe:
        """Return the recipe with attributes added or replaced."""
        return replace(self, attributes=tuple(sorted((dict(self.attributes) | changes).items())))


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of the actor, in words of `LOSS_KINDS`, `AGGREGATIONS` and `ADVANTAGES`, and its usual settings.

    `clip` is how far the ratio may go below and above 1, `kl_where` and `kl_estimator` are the defaults of
    `training.kl`.
    """

    kind: str = "clipped"
    aggregation: str = "token-mean"
    advantages: str = "group-normalised"
    clip: tuple[float, float] = (0.2, 0.2)
    kl_where: str = "loss"
    kl_estimator: str = "k3"


@dataclass(frozen=True, slots=True)
class Preset:
    """An algorithm: how it expands to stages, its loss, and the public source of both.

    `least_samples` and `most_samples` (0: any number) bound `workload.samples_per_prompt`. `oversampling` is the
    default number of prompts generated for each prompt trained on, 0 where all are trained on. `judged` says whether
    rewards are of any use, `data` which values come from the data, `needs` the roles that it cannot do without and what
    each of them does.
    """

    name: str
    what: str
    source: str
    stages: Callable[[PipelineSpec], tuple[Recipe, ...]]
    loss: Loss
    least_samples: int = 1
    most_samples: int = 0
    oversampling: float = 0.0
    judged: bool = True
    data: tuple[str, ...] = ("prompts",)
    needs: tuple[tuple[str, str], ...] = ()
