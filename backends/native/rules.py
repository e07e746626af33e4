"""What the native engine refuses about one stage's layout, a table of rules for each op; `source` is its own file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpegc.target import WORDS, BoolArray, Columns, Rule

GROUPS = "rpegc/runtime/groups.py"
PARALLEL = "rpegc/runtime/parallel.py"
ATTENTION = "rpegc/runtime/attention.py"
PIPELINING = "rpegc/runtime/pipelining.py"
BATCHING = "rpegc/runtime/batching.py"
DECODE = "rpegc/runtime/decode.py"
GENERATING = "rpegc/runtime/generating.py"


def _divides(divisor: NDArray[Any], number: NDArray[Any]) -> BoolArray:
    return np.asarray(number % np.maximum(divisor, 1) == 0)


def _tiles(c: Columns) -> BoolArray:
    ones = c["cp"] * c["ep"] * c["etp"]
    return np.asarray((ones == 1) & (c["dp"] * c["ulysses"] * c["tp"] * c["pp"] == c["gpus"]))


def _shards(c: Columns) -> BoolArray:
    ranks = c["dp"] * c["ulysses"]
    return np.asarray((c["shard_size"] == 0) | (c["zero"] < 2) | (ranks % np.maximum(c["shard_size"], 1) == 0))


def _heads(c: Columns) -> BoolArray:
    return _divides(c["tp"], c["heads"]) & _divides(c["tp"], c["kv_heads"]) & _divides(c["tp"], c["vocabulary"])


def _ulysses(c: Columns) -> BoolArray:
    heads, kv_heads = c["heads"] // c["tp"], np.maximum(c["kv_heads"] // c["tp"], 1)
    either = _divides(c["ulysses"], kv_heads) | _divides(kv_heads, c["ulysses"])
    return np.asarray(_divides(c["ulysses"], heads) & either & ((c["ulysses"] == 1) | (c["pp"] == 1)))


def _pipeline(c: Columns) -> BoolArray:
    whole = (c["pp"] == 1) & (c["vpp"] == 1)
    split = (c["pp"] > 1) & (c["pp"] * c["vpp"] <= c["layers"]) & (c["zero"] < 2) & (c["experts"] == 0)
    return np.asarray(whole | split)


def _one_batching(c: Columns) -> BoolArray:
    return np.asarray((c["micro_batch"] > 0) != (c["token_budget"] > 0))


def _budget(c: Columns) -> BoolArray:
    return np.asarray((c["token_budget"] == 0) | (c["token_budget"] * c["ulysses"] >= c["max_sequence_tokens"]))


def _offload(c: Columns) -> BoolArray:
    trained = c["trained"] if "trained" in c else np.ones_like(c["gpus"])
    parameters, optimizer = c["offload_parameters"] == 1, c["offload_optimizer"] == 1
    together = np.where(trained == 1, parameters == optimizer, ~optimizer)
    return np.asarray(together & (~parameters | ((c["zero"] >= 2) & (c["pp"] == 1))))


NONE = WORDS["recompute"].index("none")


TENSOR_PARALLEL: tuple[Rule, ...] = (
    Rule(
        "tensor-parallel-splits-model",
        PARALLEL,
        "tp {tp} must divide {heads} heads, {kv_heads} key-value heads and the vocabulary {vocabulary}",
        _heads,
    ),
    Rule(
        "experts-are-not-split",
        PARALLEL,
        "a model of {experts} experts has no tensor parallelism here: tp must be 1, not {tp}",
        lambda c: np.asarray((c["experts"] == 0) | (c["tp"] == 1)),
    ),
    Rule(
        "tensor-parallel-inside-a-node",
        PARALLEL,
        "tp {tp} must divide the {gpus_per_node} GPUs that the mesh takes of each node",
        lambda c: _divides(c["tp"], c["gpus_per_node"]),
    ),
)
"""What tensor parallelism asks of a model and a mesh, in training and in generation."""

SHARDED: tuple[Rule, ...] = (
    Rule(
        "layout-tiles-mesh",
        GROUPS,
        "dp {dp} × ulysses {ulysses} × tp {tp} × pp {pp} must be the {gpus} GPUs of the mesh, "
        "with cp {cp}, ep {ep} and etp {etp} 1",
        _tiles,
    ),
    Rule(
        "shard-group-tiles-data-ranks",
        GROUPS,
        "shard_size {shard_size} must divide dp {dp} × ulysses {ulysses}",
        _shards,
    ),
    *TENSOR_PARALLEL,
    Rule(
        "ulysses-splits-heads",
        ATTENTION,
        "ulysses {ulysses} must divide the heads of a rank ({heads} / tp {tp}), divide or be divided by its key-value "
        "heads ({kv_heads} / tp), and stand without pipeline (pp {pp})",
        _ulysses,
    ),
    Rule(
        "pipeline-holds-whole-layers",
        PIPELINING,
        "pp {pp} × vpp {vpp} must be at most the {layers} layers, with zero {zero} below 2 and a dense model "
        "(experts {experts}); vpp needs pp above 1",
        _pipeline,
    ),
    Rule(
        "one-way-of-batching",
        BATCHING,
        "exactly one of micro_batch {micro_batch} and token_budget {token_budget} must be given",
        _one_batching,
    ),
    Rule(
        "token-budget-holds-a-sequence",
        BATCHING,
        "token budget {token_budget} × ulysses {ulysses} must hold the longest sequence, {max_sequence_tokens} tokens",
        _budget,
    ),
    Rule(
        "states-are-offloaded-together",
        PARALLEL,
        "FSDP2's CPUOffloadPolicy moves parameters and optimizer as one, of models with zero 2 or 3 and no pipeline: "
        "offload_parameters {offload_parameters}, offload_optimizer {offload_optimizer}, zero {zero}, pp {pp}",
        _offload,
    ),
    Rule(
        "activations-are-offloaded-or-recomputed",
        "rpegc/runtime/model.py",
        "offload_activations needs recompute none: what is recomputed is not kept",
        lambda c: np.asarray((c["offload_activations"] == 0) | (c["recompute"] == NONE)),
    ),
    Rule(
        "sequence-fits-the-model",
        "rpegc/runtime/model.py",
        "the longest sequence, {max_sequence_tokens} tokens, must fit the model's {max_positions} positions",
        lambda c: np.asarray(c["max_sequence_tokens"] <= c["max_positions"]),
    ),
)

GENERATE: tuple[Rule, ...] = (
    Rule(
        "replicas-tile-mesh",
        GROUPS,
        "replicas {replicas} × tp {tp} must be the {gpus} GPUs of the mesh, with engine_dp {engine_dp}, pp {pp} and "
        "ep {ep} 1",
        lambda c: np.asarray((c["engine_dp"] * c["pp"] * c["ep"] == 1) & (c["replicas"] * c["tp"] == c["gpus"])),
    ),
    Rule(
        "replicas-share-prompts",
        GENERATING,
        "the {prompts_per_step} prompts of a step must split evenly over {replicas} replicas: groups stay whole",
        lambda c: _divides(c["replicas"], c["prompts_per_step"]),
    ),
    *TENSOR_PARALLEL,
    Rule(
        "sequence-fits-the-model",
        DECODE,
        "the longest sequence, {max_sequence_tokens} tokens, must fit the model's {max_positions} positions",
        lambda c: np.asarray(c["max_sequence_tokens"] <= c["max_positions"]),
    ),
)

RULES: dict[str, tuple[Rule, ...]] = {"train": SHARDED, "forward": SHARDED, "generate": GENERATE}
