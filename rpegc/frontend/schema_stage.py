"""The blocks that say which models there are and which stages use them: models, stages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rpegc.frontend.schema_fields import Block, Count, Identifier, NotNegative, Positive, Text, ValueName


class ModelSpec(Block):
    """One role's model: either its own (`config`), or the one that another role starts from (`like`)."""

    config: Text | None = None
    """A name of the catalogue, or a path to a Hugging Face config.json or its folder."""
    weights: Text | None = None
    """Folder of the weights on the cluster; may be missing for planning."""
    tokenizer: Text | None = None
    """Folder of the tokenizer on the cluster; absent = that of the weights."""
    like: Identifier | None = None
    """Another role whose config, weights and tokenizer this role starts from."""


class StageLengthsSpec(Block):
    """Lengths of a stage of its own, in tokens: {fixed}, {mean, max} or {mean, p99, max}."""

    fixed: Count | None = None
    """Every length."""
    mean: Positive | None = None
    """Mean length."""
    p99: Positive | None = None
    """Length that 99 % do not exceed."""
    max: Count | None = None
    """Longest length."""

    @property
    def longest(self) -> int:
        """The most tokens that one can have."""
        return self.fixed or self.max or 0


class StageSpec(Block):
    """A stage that the user adds or replaces."""

    op: Literal["generate", "forward", "train", "function"]
    """What the stage does."""
    inputs: tuple[ValueName, ...] = Field(default=(), alias="in")
    """Values it uses; `prompts` come from the data."""
    outputs: tuple[Identifier, ...] = Field(default=(), alias="out")
    """Values it makes; a train stage also makes `weights(MODEL)`."""
    model: Identifier | None = None
    """Role whose model it runs; none for a function."""
    head: Literal["logits", "scalar"] | None = None
    """What a forward or train stage computes per token; absent = logits."""
    cpu_seconds_per_sample: NotNegative | None = None
    """CPU seconds of a function per sample."""
    workers_per_node: Count | None = None
    """Samples that one node handles at once in a function; absent = 1."""
    samples_per_prompt: Count | None = None
    """Sequences of each prompt that it works on, or responses that it generates for each of its inputs."""
    oversampling: Annotated[float, Field(ge=1, le=100)] | None = None
    """Prompts that it works on for each prompt trained on; absent = those of what it reads."""
    prompt_tokens: StageLengthsSpec | None = None
    """Lengths that it reads, where they are not those of the step."""
    response_tokens: StageLengthsSpec | None = None
    """Lengths that it writes, or scores, where they are not those of the step."""
    turns: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Turns of a generate stage, between which its environment answers; absent = 1."""
    observation_tokens: NotNegative | None = None
    """Mean tokens that the environment adds after each turn but the last; they count as response, but are read."""
    environment: Identifier | None = None
    """The function stage that answers after each turn."""
