"""The blocks that say which models there are and which stages use them: models, stages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rpegc.frontend.schema_fields import Block, Count, Identifier, NotNegative, Text, ValueName


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
