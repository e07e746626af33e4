"""What TRL, DeepSpeed and vLLM refuse, or crash on at run time, about one stage's layout: rules for each op.

Some bind only one placement; `apart` is 1 for a stage that shares its mesh with no other: the server of `server` mode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.layout_rules import BATCH_FITS, VLLM_SPLITS, divides
from rpegc.target import WORDS, BoolArray, Columns, Rule

GRPO_CONFIG = "trl/trainer/grpo_config.py"
GRPO_TRAINER = "trl/trainer/grpo_trainer.py"
VLLM_GENERATION = "trl/generation/vllm_generation.py"
VLLM_CLIENT = "trl/generation/vllm_client.py"
ZERO_CONFIG = "deepspeed/runtime/zero/config.py"
OFFLOAD_CONFIG = "deepspeed/runtime/zero/offload_config.py"
BATCH_CONFIG = "deepspeed/runtime/config.py"
RUN = "torch/distributed/run.py"

COLOCATED_BATCHED_TOKENS = 4096
"""`max_num_batched_tokens` that TRL gives every colocated engine (VLLM_GENERATION)."""
CLIENT_REQUESTS = 64
"""Prompts that TRL has a server work on at once (`_DEFAULT_GENERATION_CONCURRENCY` in VLLM_CLIENT)."""

FULL = WORDS["recompute"].index("full")
NONE = WORDS["recompute"].index("none")


def _no_model_parallelism(c: Columns) -> BoolArray:
    product = c["cp"] * c["ulysses"] * c["tp"] * c["pp"] * c["vpp"] * c["ep"] * c["etp"]
    return np.asarray((product == 1) & (c["dp"] == c["gpus"]))


def _micro_batches_tile(c: Columns) -> BoolArray:
    return divides(c["dp"] * c["micro_batch"], c["sequences_per_update"])


def share(c: Columns) -> NDArray[Any]:
    """Return the sequences of a step that one engine generates."""
    return np.asarray(-(-c["sequences_per_step"] // np.maximum(c["replicas"], 1)))


def _runs_its_share(c: Columns) -> BoolArray:
    held = (c["max_sequences"] >= share(c)) & (c["max_sequences"] < 2 * share(c))
    return np.asarray((c["apart"] == 1) | held)


def _served(c: Columns, holds: BoolArray | NDArray[Any]) -> BoolArray:
    return np.asarray((c["apart"] == 0) | holds)


WHOLE_NODES = Rule(
    "pool-takes-whole-nodes",
    RUN,
    "a pool of {nodes} nodes must take all {node_gpus} GPUs of each, not {gpus_per_node}: "
    "one launcher a node starts a process for every GPU it sees",
    lambda c: np.asarray((c["nodes"] == 1) | (c["gpus_per_node"] == c["node_gpus"])),
)

SHARDED: tuple[Rule, ...] = (
    Rule(
        "trainer-has-no-model-parallelism",
        GRPO_CONFIG,
        "dp {dp} must be the {gpus} GPUs of the mesh, with cp, ulysses, tp, pp, vpp, ep and etp 1 "
        "(cp {cp}, ulysses {ulysses}, tp {tp}, pp {pp}, vpp {vpp}, ep {ep}, etp {etp})",
        _no_model_parallelism,
    ),
    Rule(
        "zero-shards-over-all-ranks",
        ZERO_CONFIG,
        "ZeRO shards over all {gpus} ranks: shard_size must be 0 or {gpus}, not {shard_size}",
        lambda c: np.asarray((c["shard_size"] == 0) | (c["shard_size"] == c["gpus"])),
    ),
    Rule(
        "sequences-are-counted",
        GRPO_CONFIG,
        "TRL batches by sequences: micro_batch {micro_batch} must be at least 1 and token_budget {token_budget} be 0",
        lambda c: np.asarray((c["micro_batch"] >= 1) & (c["token_budget"] == 0)),
    ),
    Rule(
        "parameters-offload-with-zero-3",
        OFFLOAD_CONFIG,
        "offload_parameters is valid with ZeRO 3 only, which DeepSpeed does not check: zero is {zero}",
        lambda c: np.asarray((c["offload_parameters"] == 0) | (c["zero"] == 3)),
    ),
    Rule(
        "optimizer-offload-with-zero",
        OFFLOAD_CONFIG,
        "offload_optimizer is valid with ZeRO 1, 2 and 3: zero is {zero}",
        lambda c: np.asarray((c["offload_optimizer"] == 0) | (c["zero"] >= 1)),
    ),
    Rule(
        "micro-batches-tile-the-update",
        BATCH_CONFIG,
        "the {sequences_per_update} sequences of an update must be a multiple of dp {dp} × micro_batch {micro_batch}",
        _micro_batches_tile,
    ),
    WHOLE_NODES,
)

TRAIN: tuple[Rule, ...] = (
    *SHARDED,
    Rule(
        "recompute-is-all-or-nothing",
        "transformers/modeling_utils.py",
        "gradient checkpointing is on or off: recompute must be none or full",
        lambda c: np.asarray((c["recompute"] == FULL) | (c["recompute"] == NONE)),
    ),
)

GENERATE: tuple[Rule, ...] = (
    Rule(
        "replicas-tile-pool",
        VLLM_GENERATION,
        "replicas {replicas} × tp {tp} must be the {gpus} GPUs of the pool, with dp {engine_dp}, pp {pp} and ep {ep} 1",
        lambda c: np.asarray(
            (c["replicas"] * c["tp"] == c["gpus"]) & (c["engine_dp"] == 1) & (c["pp"] == 1) & (c["ep"] == 1)
        ),
    ),
    Rule(
        "tp-inside-a-node",
        VLLM_GENERATION,
        "tp {tp} must divide the {gpus_per_node} GPUs that the pool takes of a node: "
        "TRL groups neighbouring ranks (that they share a node is an assumption of rpegc, not a check of TRL)",
        lambda c: divides(c["tp"], c["gpus_per_node"]),
    ),
    Rule(
        "colocated-engine-runs-its-share",
        GRPO_TRAINER,
        "TRL has a colocated engine run all its sequences of a step at once ({sequences_per_step} over {replicas} "
        "engines): max_sequences must be that, rounded up to a value of the menu, not {max_sequences}",
        _runs_its_share,
    ),
    Rule(
        "colocated-engine-batches-4096-tokens",
        VLLM_GENERATION,
        "TRL starts a colocated engine with batches of 4096 tokens, not {batched_tokens}",
        lambda c: np.asarray((c["apart"] == 1) | (c["batched_tokens"] == COLOCATED_BATCHED_TOKENS)),
    ),
    Rule(
        "server-is-one-replica",
        VLLM_CLIENT,
        "TRL knows one server, and a dense model has one replica in it: the pool of {nodes} nodes × {gpus_per_node} "
        "GPUs must be one node, and tp {tp} all its GPUs",
        lambda c: _served(c, (c["nodes"] == 1) & (c["replicas"] == 1)),
    ),
    Rule(
        "server-never-sleeps",
        VLLM_CLIENT,
        "nothing wakes a server up: offload must be false",
        lambda c: _served(c, c["offload"] == 0),
    ),
    Rule(
        "server-gets-64-prompts-at-once",
        VLLM_CLIENT,
        "TRL has a server work on 64 prompts with {samples_per_prompt} samples at once: max_sequences {max_sequences} "
        "must not be more",
        lambda c: _served(c, c["max_sequences"] <= CLIENT_REQUESTS * c["samples_per_prompt"]),
    ),
    *VLLM_SPLITS,
    Rule(
        "sequence-fits-the-model",
        VLLM_GENERATION,
        "the longest sequence, {max_sequence_tokens} tokens, must fit the model's {max_positions} positions",
        lambda c: np.asarray(c["max_sequence_tokens"] <= c["max_positions"]),
    ),
    BATCH_FITS,
    WHOLE_NODES,
)

RULES: dict[str, tuple[Rule, ...]] = {"train": TRAIN, "forward": SHARDED, "generate": GENERATE}
