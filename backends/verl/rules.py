"""What verl 0.9.1 refuses, or crashes on at run time, about one stage's layout: a table of rules for each op.

Each rule is one expression over columns, so that it filters whole tables and checks the chosen row again. verl checks
few of these before the job runs; the source says which of its files would stop, and rpegc stops first.
"""

from __future__ import annotations

import numpy as np

from backends.layout_rules import (
    BATCH_FITS,
    VLLM_LORA,
    VLLM_MAXIMUM_LORA_RANK,
    VLLM_SPLITS,
    divides,
    either_divides,
    whole_nodes_of,
)
from rpegc.target import WORDS, BoolArray, Columns, Rule

FSDP_UTILS = "verl/workers/engine/fsdp/utils.py"
FSDP_ENGINE = "verl/workers/engine/fsdp/transformer_impl.py"
MONKEY_PATCH = "verl/models/transformers/monkey_patch.py"
ENGINE_WORKERS = "verl/workers/engine_workers.py"
SEQUENCE_BALANCING = "verl/utils/seqlen_balancing.py"
RESOURCE_POOL = "verl/single_controller/ray/base.py"
ROLLOUT_CONFIG = "verl/workers/config/rollout.py"
REPLICA = "verl/workers/rollout/replica.py"
VLLM_SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"


def _ulysses_splits_heads(c: Columns) -> BoolArray:
    return divides(c["ulysses"], c["heads"]) & either_divides(c["ulysses"], c["kv_heads"])


def _shards_tile(c: Columns) -> BoolArray:
    return np.asarray((c["shard_size"] == 0) | divides(c["shard_size"], c["gpus"]))


def _budget_holds_a_sequence(c: Columns) -> BoolArray:
    return np.asarray(
        (c["token_budget"] > 0) & (c["token_budget"] * c["ulysses"] * c["cp"] >= c["max_sequence_tokens"])
    )


def _no_model_parallelism(c: Columns) -> BoolArray:
    product = c["cp"] * c["tp"] * c["pp"] * c["vpp"] * c["ep"] * c["etp"]
    return np.asarray((product == 1) & (c["dp"] * c["ulysses"] == c["gpus"]))


def _expert_parallelism(c: Columns) -> BoolArray:
    return np.asarray((c["ep"] == 1) | ((c["ep"] == c["tp"] * c["engine_dp"]) & (c["experts"] > 0)))


def _experts_split(c: Columns) -> BoolArray:
    return np.asarray((c["ep"] == 1) | divides(c["ep"], c["experts"]))


def _tp_inside_nodes(c: Columns) -> BoolArray:
    return divides(np.minimum(c["gpus_per_node"], c["tp"] * c["engine_dp"] * c["pp"]), c["tp"] * c["engine_dp"])


def _tp_tiles_a_node(c: Columns) -> BoolArray:
    return divides(c["tp"], c["gpus_per_node"]) | divides(c["gpus_per_node"], c["tp"])


def _frozen_weights_offloaded(c: Columns) -> BoolArray:
    # `trained` is 0 for a model that nobody trains; where the column is absent the rule has no say.
    trained = c["trained"] if "trained" in c else np.ones_like(c["gpus"])
    return np.asarray((trained == 1) | (c["offload_parameters"] == 1))


def _data_parallel_engines(c: Columns) -> BoolArray:
    # With data parallelism inside a replica, the replica's servers take whole nodes.
    whole_nodes = divides(c["tp"], c["gpus_per_node"]) & divides(c["gpus_per_node"], c["tp"] * c["engine_dp"])
    return np.asarray((c["engine_dp"] == 1) | whole_nodes)


FULL = WORDS["recompute"].index("full")
NONE = WORDS["recompute"].index("none")
BF16 = WORDS["precision"].index("bf16")

WHOLE_NODES = whole_nodes_of(RESOURCE_POOL)

BUDGET_HOLDS_A_SEQUENCE = Rule(
    "token-budget-holds-a-sequence",
    SEQUENCE_BALANCING,
    "token budget {token_budget} × ulysses {ulysses} × cp {cp} must hold the longest sequence, {max_sequence_tokens} "
    "tokens (prompt {max_prompt_tokens} + response {max_response_tokens})",
    _budget_holds_a_sequence,
)

MINIBATCH_SPLITS = Rule(
    "minibatch-splits-over-ranks",
    ENGINE_WORKERS,
    "the {sequences_per_update} sequences of an update must split evenly over {dp} data-parallel ranks",
    lambda c: divides(c["dp"], c["sequences_per_update"]),
)

BATCH_SPLITS = Rule(
    "batch-splits-over-ranks",
    "verl/single_controller/base/decorator.py",
    "the {sequences_per_step} sequences of a step must split evenly over {dp} data-parallel ranks",
    lambda c: divides(c["dp"], c["sequences_per_step"]),
)

SHARDED: tuple[Rule, ...] = (
    Rule(
        "fsdp-has-no-model-parallelism",
        FSDP_ENGINE,
        "dp {dp} × ulysses {ulysses} must be the {gpus} GPUs of the mesh, with cp, tp, pp, vpp, ep and etp 1 "
        "(cp {cp}, tp {tp}, pp {pp}, vpp {vpp}, ep {ep}, etp {etp})",
        _no_model_parallelism,
    ),
    Rule(
        "ulysses-splits-heads",
        MONKEY_PATCH,
        "ulysses {ulysses} must divide {heads} attention heads, and divide or be divided by {kv_heads} key-value heads",
        _ulysses_splits_heads,
    ),
    Rule(
        "ulysses-inside-a-node",
        FSDP_ENGINE,
        "ulysses {ulysses} must divide the {gpus_per_node} GPUs that the mesh takes of each node: "
        "its all-to-all in every layer would cross nodes (an assumption of rpegc, not a check of verl)",
        lambda c: divides(c["ulysses"], c["gpus_per_node"]),
    ),
    Rule(
        "shard-group-tiles-mesh",
        FSDP_UTILS,
        "fsdp_size {shard_size} must divide the {gpus} GPUs of the mesh",
        _shards_tile,
    ),
    Rule(
        "fsdp2-always-shards",
        FSDP_ENGINE,
        "FSDP2 shards weights: zero must be 2 (keep gathered) or 3 (reshard after forward), not {zero}",
        lambda c: np.asarray((c["zero"] == 2) | (c["zero"] == 3)),
    ),
    BUDGET_HOLDS_A_SEQUENCE,
    WHOLE_NODES,
)

TRAIN: tuple[Rule, ...] = (
    *SHARDED,
    MINIBATCH_SPLITS,
    Rule(
        "recompute-is-all-or-nothing",
        "verl/trainer/config/model/hf_model.yaml",
        "gradient checkpointing is on or off under FSDP: recompute must be none or full",
        lambda c: np.asarray((c["recompute"] == FULL) | (c["recompute"] == NONE)),
    ),
)

FORWARD: tuple[Rule, ...] = (
    *SHARDED,
    Rule(
        "frozen-weights-are-offloaded",
        FSDP_ENGINE,
        "FSDP2 keeps a forward-only model's weights in host memory (CPUOffloadPolicy): offload_parameters must be true",
        _frozen_weights_offloaded,
    ),
    BATCH_SPLITS,
)

GENERATE: tuple[Rule, ...] = (
    Rule(
        "replicas-tile-pool",
        ENGINE_WORKERS,
        "replicas {replicas} × dp {engine_dp} × tp {tp} × pp {pp} must be the {gpus} GPUs of the pool",
        lambda c: np.asarray(c["replicas"] * c["engine_dp"] * c["tp"] * c["pp"] == c["gpus"]),
    ),
    Rule(
        "rollout-has-no-pipeline",
        ROLLOUT_CONFIG,
        "rollout pipeline parallelism is not implemented for vLLM: pp must be 1, not {pp}",
        lambda c: np.asarray(c["pp"] == 1),
    ),
    Rule(
        "expert-parallel-takes-the-replica",
        ROLLOUT_CONFIG,
        "rollout ep {ep} must be 1, or tp {tp} × dp {engine_dp} of a model with experts ({experts})",
        _expert_parallelism,
    ),
    Rule(
        "experts-split-over-ranks",
        "vllm/model_executor/layers/fused_moe/layer.py",
        "the {experts} experts must split evenly over ep {ep}",
        _experts_split,
    ),
    Rule(
        "replica-is-whole-nodes",
        REPLICA,
        "a replica of tp {tp} × dp {engine_dp} × pp {pp} must be a multiple of the GPUs it takes of a node "
        "(at most {gpus_per_node})",
        _tp_inside_nodes,
    ),
    Rule(
        "tp-tiles-a-node",
        REPLICA,
        "tp {tp} must divide the {gpus_per_node} GPUs of a node, or be a multiple of them",
        _tp_tiles_a_node,
    ),
    Rule(
        "data-parallel-engine-takes-whole-nodes",
        VLLM_SERVER,
        "with dp {engine_dp} inside a replica, tp {tp} must divide the node's {gpus_per_node} GPUs "
        "and tp × dp must be whole nodes",
        _data_parallel_engines,
    ),
    *VLLM_SPLITS,
    Rule(
        "sequence-fits-the-model",
        VLLM_SERVER,
        "the longest sequence, {max_sequence_tokens} tokens, must fit the model's {max_positions} positions",
        lambda c: np.asarray(c["max_sequence_tokens"] <= c["max_positions"]),
    ),
    BATCH_FITS,
    Rule(
        "rollout-is-bf16",
        ROLLOUT_CONFIG,
        "the rollout runs in bf16; quantized rollout is not emitted",
        lambda c: np.asarray(c["precision"] == BF16),
    ),
    Rule(
        "lora-rank-is-served",
        VLLM_LORA,
        f"LoRA rank {{lora_rank}} must be at most {VLLM_MAXIMUM_LORA_RANK}",
        lambda c: np.asarray(c["lora_rank"] <= VLLM_MAXIMUM_LORA_RANK),
    ),
    WHOLE_NODES,
)

RULES: dict[str, tuple[Rule, ...]] = {"train": TRAIN, "forward": FORWARD, "generate": GENERATE}
