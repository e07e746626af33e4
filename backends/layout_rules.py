"""Rules that several targets share: what vLLM refuses of an engine, and what Ray makes of part-node pools."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpegc.target import BoolArray, Columns, Rule

VLLM_MODEL = "vllm/config/model.py"
VLLM_LINEAR = "vllm/model_executor/layers/linear.py"
VLLM_EMBEDDING = "vllm/model_executor/layers/vocab_parallel_embedding.py"
VLLM_SCHEDULER = "vllm/config/scheduler.py"
VLLM_LORA = "vllm/config/lora.py"

VLLM_VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before it splits it (DEFAULT_VOCAB_PADDING_SIZE in VLLM_EMBEDDING)."""

VLLM_MAXIMUM_LORA_RANK = 512
"""The largest `MaxLoRARanks` choice in VLLM_LORA of vllm 0.24; smaller ranks are rounded up to the next choice."""


def divides(divisor: NDArray[Any], number: NDArray[Any]) -> BoolArray:
    """Whether each divisor divides its number; 0 counts as 1."""
    return np.asarray(number % np.maximum(divisor, 1) == 0)


def either_divides(left: NDArray[Any], right: NDArray[Any]) -> BoolArray:
    """Whether of each pair one divides the other."""
    return divides(left, right) | divides(right, left)


def _whole_nodes(c: Columns) -> BoolArray:
    return np.asarray((c["nodes"] == 1) | (c["gpus_per_node"] == c["node_gpus"]))


def _padded_vocabulary_splits(c: Columns) -> BoolArray:
    padded = -(-c["vocabulary"] // VLLM_VOCABULARY_PADDING) * VLLM_VOCABULARY_PADDING
    return divides(c["tp"], padded)


def _weights_fit_the_engine(c: Columns) -> BoolArray:
    return np.asarray(c["hbm_bytes"] * c["memory_fraction"] * c["tp"] * c["pp"] > c["parameter_bytes"])


def whole_nodes_of(source: str) -> Rule:
    """Return the rule that a pool of several nodes takes whole ones; `source` places its workers."""
    return Rule(
        "pool-takes-whole-nodes",
        source,
        "a pool of {nodes} nodes must take all {node_gpus} GPUs of each, not {gpus_per_node}: "
        "Ray packs two part-node groups onto one node",
        _whole_nodes,
    )


VLLM_SPLITS: tuple[Rule, ...] = (
    Rule(
        "tp-splits-heads",
        VLLM_MODEL,
        "rollout tp {tp} must divide {heads} attention heads",
        lambda c: divides(c["tp"], c["heads"]),
    ),
    Rule(
        "tp-splits-key-value-heads",
        VLLM_LINEAR,
        "rollout tp {tp} must divide, or be divided by, {kv_heads} key-value heads",
        lambda c: either_divides(c["tp"], c["kv_heads"]),
    ),
    Rule(
        "tp-splits-vocabulary",
        VLLM_EMBEDDING,
        "rollout tp {tp} must divide the vocabulary {vocabulary} padded to a multiple of 64",
        _padded_vocabulary_splits,
    ),
    Rule(
        "weights-fit-the-engine",
        "vllm/v1/worker/gpu_worker.py",
        "memory fraction {memory_fraction} of {hbm_bytes:.0f} bytes on tp {tp} GPUs must exceed the weights, "
        "{parameter_bytes:.0f} bytes, or no KV block is left",
        _weights_fit_the_engine,
        capacity=True,
    ),
    Rule(
        "memory-fraction-is-a-share",
        "vllm/config/cache.py",
        "memory fraction {memory_fraction} must lie above 0 and at most at 1",
        lambda c: np.asarray((c["memory_fraction"] > 0) & (c["memory_fraction"] <= 1)),
    ),
)
"""How vLLM splits a model, and what memory it needs for that."""

BATCH_FITS = Rule(
    "batched-tokens-hold-the-batch",
    VLLM_SCHEDULER,
    "batched tokens {batched_tokens} must be at least the {max_sequences} sequences of an engine step",
    lambda c: np.asarray(c["batched_tokens"] >= c["max_sequences"]),
)
