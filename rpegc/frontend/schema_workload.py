"""The blocks that say what is learned from what: data, workload, training, reward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rpegc.frontend.schema_fields import Block, Count, FunctionReference, NotNegative, Positive, Text


class DataSpec(Block):
    """Where the prompts are. Paths need not exist on the machine that plans."""

    train: Text | None = None
    """Prompts to train on (a file of the target's format, such as parquet)."""
    val: Text | None = None
    """Prompts to test on."""
    prompt_key: Text = "prompt"
    """Column that holds the prompt."""
    answer_key: Text = "answer"
    """Column that holds the expected answer."""


class LengthsSpec(Block):
    """A length distribution in tokens, as observed after clipping at `max`.

    Forms: {fixed}; {mean, max}; {mean, p99, max}; {histogram, max}.
    """

    fixed: Count | None = None
    """Every sequence has exactly this many tokens."""
    mean: Positive | None = None
    """Mean tokens, as observed."""
    p99: Positive | None = None
    """Tokens that 99 % of the sequences do not exceed, as observed."""
    max: Count | None = None
    """Tokens at which a sequence is cut off."""
    histogram: Text | None = None
    """A CSV file with columns `tokens,count`, or the samples of a run as JSON lines (.jsonl), relative to the pipeline
    file."""

    @property
    def longest(self) -> int:
        """The most tokens a sequence can have."""
        return self.fixed or self.max or 0


class WorkloadSpec(Block):
    """What one RL step processes."""

    prompts_per_step: Count
    """Prompts of one RL step."""
    samples_per_prompt: Count = 1
    """Responses generated for each prompt (the group of GRPO)."""
    prompt_tokens: LengthsSpec
    """Length of the prompts."""
    response_tokens: LengthsSpec
    """Length of the responses."""
    minibatches_per_step: Count = 1
    """Optimizer updates of one pass over the step's samples."""
    oversampling: Annotated[float, Field(ge=1, le=100)] | None = None
    """Prompts generated for each prompt that is trained on, in the mean, where the preset samples dynamically."""


class KlSpec(Block):
    """The penalty that holds the actor near the reference."""

    coefficient: NotNegative
    """Weight of the penalty; 0 turns it off."""
    where: Literal["loss", "reward"] | None = None
    """Whether the penalty is a term of the loss or is subtracted from the reward; absent = as the preset does."""
    estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the divergence from samples: k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r; absent = as the
    preset does."""


class TrainingSpec(Block):
    """How the weights are updated."""

    precision: Literal["bf16"] = "bf16"
    """Number format of weights and activations in the forward and backward passes."""
    optimizer: Literal["adamw"] = "adamw"
    """The optimizer; its states are priced."""
    learning_rate: Positive | None = None
    """Learning rate of the actor; may be missing for planning."""
    epochs_per_batch: Annotated[int, Field(ge=1, le=1000)] = 1
    """Passes over the samples of a step."""
    clip: tuple[Positive, Positive] | None = None
    """How far the probability ratio may go below and above 1 before it is clipped; absent = as the preset does."""
    kl: KlSpec = KlSpec(coefficient=0.0)
    """The KL penalty; absent = none."""
    temperature: Positive = 1.0
    """Sampling temperature of the rollout."""
    lora_rank: Annotated[int, Field(ge=0, le=4096)] = 0
    """Rank of the adapters that are trained in place of the weights; 0 trains the weights."""
    total_steps: Count | None = None
    """RL steps of the run; may be missing for planning."""
    save_every: Count | None = None
    """RL steps between checkpoints; absent = never."""
    test_every: Count | None = None
    """RL steps between tests; absent = never."""


class OverlongSpec(Block):
    """The punishment of responses that come near the longest length (DAPO, arXiv 2503.14476, equation 13)."""

    buffer_tokens: Count
    """Tokens before the longest length in which the punishment grows from 0 to `penalty`."""
    penalty: NotNegative = 1.0
    """The most that is taken off the reward; 0 turns the punishment off."""


class RewardSpec(Block):
    """A reward that a program computes from the finished text."""

    function: FunctionReference | None = None
    """`path/to/file.py:function`, relative to the pipeline file; absent = the target's own verifier."""
    seconds_per_sample: NotNegative = 0.02
    """CPU seconds to judge one sample (the default is an assumption: a symbolic maths checker)."""
    workers_per_node: Annotated[int, Field(ge=1, le=65536)] = 64
    """Samples that one node judges at once."""
    overlong: OverlongSpec | None = None
    """Punishment of long responses; absent = none, but for the preset dapo a fifth of the longest length."""
