"""What verl 0.9.1's Megatron engine refuses, or crashes on at run time, about one training or forward layout.

Its process groups are Megatron-core's, its models Megatron-Bridge's (`use_mbridge`, the only way in 0.9.1).
"""

from __future__ import annotations

import numpy as np

from backends.layout_rules import divides
from backends.verl.rules import (
    BATCH_SPLITS,
    BUDGET_HOLDS_A_SEQUENCE,
    ENGINE_WORKERS,
    MINIBATCH_SPLITS,
    SEQUENCE_BALANCING,
    WHOLE_NODES,
)
from rpegc.target import BoolArray, Columns, Rule

MEGATRON_ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
ENGINE_CONFIG = "verl/workers/config/engine.py"
PARALLEL_STATE = "megatron/core/parallel_state.py"
TRANSFORMER_CONFIG = "megatron/core/transformer/transformer_config.py"
TENSOR_LAYERS = "megatron/core/tensor_parallel/layers.py"

FEWEST_ENDS = 2
"""Layers that the first and the last stage of an uneven pipeline hold together at the least."""


def middle_layers(layers: np.ndarray | int, pp: np.ndarray | int) -> np.ndarray:
    """Return the layers of each middle stage of an uneven pipeline: embedding and loss count as a layer each."""
    return np.asarray(-(-(np.asarray(layers) + 2) // np.asarray(pp)))


def end_layers(layers: int, pp: int) -> tuple[int, int] | None:
    """Return the layers of the first and of the last pipeline stage, None where all stages hold the same.

    The keys are `num_layers_in_first_pipeline_stage` and `num_layers_in_last_pipeline_stage` of TRANSFORMER_CONFIG.
    """
    if layers % pp == 0:
        return None
    left = layers - (pp - 2) * int(middle_layers(layers, pp))
    return left - left // 2, left // 2


def _no_ulysses(c: Columns) -> BoolArray:
    return np.asarray((c["ulysses"] == 1) & (c["dp"] * c["cp"] * c["tp"] * c["pp"] == c["gpus"]))


def _layers_split(c: Columns) -> BoolArray:
    left = c["layers"] - (c["pp"] - 2) * middle_layers(c["layers"], c["pp"])
    uneven = (c["vpp"] == 1) & (c["pp"] > 1) & (left >= FEWEST_ENDS)
    return np.asarray((c["layers"] % (c["pp"] * c["vpp"]) == 0) | uneven)


def _interleaving_has_stages(c: Columns) -> BoolArray:
    return np.asarray((c["vpp"] == 1) | (c["pp"] > 1))


def _micro_batches_round_up(c: Columns) -> BoolArray:
    per_rank = c["sequences_per_pass"] // np.maximum(c["dp"], 1)
    return np.asarray((c["vpp"] == 1) | (per_rank % np.maximum(c["pp"], 1) == 0))


def _experts_tile(c: Columns) -> BoolArray:
    return divides(c["ep"] * c["etp"], c["gpus"] // np.maximum(c["pp"], 1))


def _experts_split(c: Columns) -> BoolArray:
    return np.asarray((c["ep"] == 1) | ((c["experts"] > 0) & divides(c["ep"], c["experts"])))


def _expert_tensor_split(c: Columns) -> BoolArray:
    width = c.get("expert_intermediate", np.zeros_like(c["etp"]))
    return np.asarray((c["etp"] == 1) | ((c["experts"] > 0) & divides(c["etp"], width)))


def _sequence_parallel(c: Columns) -> BoolArray:
    switched = c["sequence_parallel"] == 1
    return np.asarray(np.where(c["tp"] == 1, ~switched, switched | (c["ep"] == 1)))


SHARDED: tuple[Rule, ...] = (
    Rule(
        "megatron-splits-by-tp-cp-pp",
        PARALLEL_STATE,
        "dp {dp} × cp {cp} × tp {tp} × pp {pp} must be the {gpus} GPUs of the mesh, with ulysses 1 (not {ulysses})",
        _no_ulysses,
    ),
    Rule(
        "distributed-optimizer",
        ENGINE_CONFIG,
        "Megatron shards the optimizer alone (use_distributed_optimizer): zero must be 1, not {zero}",
        lambda c: np.asarray(c["zero"] == 1),
    ),
    Rule(
        "megatron-tp-splits-heads",
        TRANSFORMER_CONFIG,
        "tp {tp} must divide {heads} attention heads and {kv_heads} key-value heads (query groups)",
        lambda c: np.asarray(divides(c["tp"], c["heads"]) & divides(c["tp"], c["kv_heads"])),
    ),
    Rule(
        "megatron-tp-splits-vocabulary",
        TENSOR_LAYERS,
        "tp {tp} must divide the vocabulary of {vocabulary}: Megatron-Bridge does not pad it",
        lambda c: divides(c["tp"], c["vocabulary"]),
    ),
    Rule(
        "megatron-tp-inside-a-node",
        MEGATRON_ENGINE,
        "tp {tp} must divide the {gpus_per_node} GPUs that the mesh takes of each node: its collectives in every "
        "layer would cross nodes (an assumption of rpegc, not a check of verl)",
        lambda c: divides(c["tp"], c["gpus_per_node"]),
    ),
    Rule(
        "layers-split-over-stages",
        TRANSFORMER_CONFIG,
        "{layers} layers must split over pp {pp} × vpp {vpp} stages: evenly, or without vpp with shorter first and "
        "last stages",
        _layers_split,
    ),
    Rule(
        "interleaving-has-stages",
        "megatron/core/pipeline_parallel/schedules.py",
        "vpp {vpp} needs pp above 1, not {pp}",
        _interleaving_has_stages,
    ),
    Rule(
        "interleaving-rounds-micro-batches",
        SEQUENCE_BALANCING,
        "with vpp {vpp} verl rounds the micro-batches up to a multiple of pp {pp}: so many must divide the sequences "
        "of each of {dp} ranks, of {sequences_per_pass} in all",
        _micro_batches_round_up,
    ),
    Rule(
        "experts-tile-the-stage-groups",
        PARALLEL_STATE,
        "ep {ep} × etp {etp} must divide the {gpus} GPUs of the mesh over pp {pp}",
        _experts_tile,
    ),
    Rule(
        "megatron-experts-split",
        TRANSFORMER_CONFIG,
        "ep {ep} must divide the {experts} experts of the model",
        _experts_split,
    ),
    Rule(
        "expert-tensor-parallel-splits-experts",
        TENSOR_LAYERS,
        "etp {etp} must divide the width of an expert",
        _expert_tensor_split,
    ),
    Rule(
        "sequence-parallel-with-tensor-parallel",
        f"{ENGINE_CONFIG} (tp 1 switches it off), {TRANSFORMER_CONFIG} (experts with tp need it)",
        "sequence_parallel {sequence_parallel}: needs tp {tp} above 1, and is needed there with ep {ep} above 1",
        _sequence_parallel,
    ),
    BUDGET_HOLDS_A_SEQUENCE,
    WHOLE_NODES,
)

TRAIN: tuple[Rule, ...] = (
    *SHARDED,
    MINIBATCH_SPLITS,
    Rule(
        "adapters-leave-experts-alone",
        "verl/workers/config/megatron_peft.py",
        "LoRA rank {lora_rank} on {experts} experts: Megatron's adapters sit on experts too, which is not priced",
        lambda c: np.asarray((c["lora_rank"] == 0) | (c["experts"] == 0)),
    ),
    Rule(
        "activations-stay",
        ENGINE_WORKERS,
        "verl's Megatron engine does not offload activations",
        lambda c: np.asarray(c["offload_activations"] == 0),
    ),
)

FORWARD: tuple[Rule, ...] = (*SHARDED, BATCH_SPLITS)
