"""Which weights one GPU holds and trains, and the signature by which other stages see them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.step_shape import StepShape
from rpegc.target import FloatArray, IntArray, packed

Signature = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LocalParameters:
    """Elements of one GPU's slice of the model, before any sharding over data ranks, one per layout.

    `dense` is everything but the routed experts (of the fullest pipeline stage), `experts` the routed experts.
    `trained_*` are those with gradients: all of them, or the adapters only.
    """

    dense: FloatArray
    experts: FloatArray
    trained_dense: FloatArray
    trained_experts: FloatArray

    @property
    def total(self) -> FloatArray:
        """All weights of the slice."""
        return self.dense + self.experts

    @property
    def trained(self) -> FloatArray:
        """All weights of the slice with gradients."""
        return self.trained_dense + self.trained_experts


def local_parameters(shape: StepShape) -> LocalParameters:
    """Return the slice of one GPU: layers over pipeline stages, matrices over tp, experts over ep * etp.

    The fullest stage also holds the embedding or the head, whichever is larger (both on a single stage).
    """
    a = shape.architecture
    whole = float(a.parameters_with_head(shape.work.head))
    head = whole - float(a.parameters_with_head("none"))
    ends = a.embedding_parameters + head
    layers = whole - ends - a.expert_parameters_total
    stage_share = np.minimum(shape.stage_layers / a.layers, 1.0)
    # Where pp does not divide the layers, the stages with the ends hold that many layers less.
    end = np.where(shape.pp == 1, ends, np.where(a.layers % shape.pp == 0, max(a.embedding_parameters, head), 0.0))
    dense = (layers * stage_share + end) / shape.tp
    experts = a.expert_parameters_total * stage_share / (shape.ep * shape.etp)
    rank = shape.work.lora_rank
    if rank:
        adapter = adapter_parameters(a, rank) * stage_share / shape.tp
        return LocalParameters(dense, experts, adapter, np.zeros(shape.rows))
    return LocalParameters(dense, experts, dense, experts)


def weight_bytes(shape: StepShape) -> FloatArray:
    """Return the bytes per weight that an engine keeps: FP32 shards of a fully sharded trained model, else BF16.

    verl keeps FP32 for frozen models of its FSDP engines too (model_dtype fp32 in trainer/config/engine/fsdp.yaml).
    """
    keeps_master = shape.fully_sharded & (shape.work.trained or shape.training or shape.streams_weights)
    return np.where(keeps_master, shape.constants.master_bytes.value, 2.0)


def stored_bytes(shape: StepShape, local: LocalParameters) -> FloatArray:
    """Return the bytes of one GPU's share of the weights, wherever they lie."""
    return weight_bytes(shape) * local.total / np.where(shape.fully_sharded, shape.shard, 1.0)


def adapter_parameters(architecture: Architecture, rank: int) -> float:
    """Return the elements of rank-r adapters on all linear modules of the layers: r (in + out) each.

    Routed experts get adapters too where they are separate modules; stacked experts (one tensor) do not, as in
    transformers 5, so they are left out.
    """
    a = architecture
    mixers = sum(mixer.layers * mixer.adapter_width(a.hidden) for mixer in a.mixers)
    dense = a.mlp_matrices * (a.hidden + a.intermediate) * a.dense_layers
    shared = a.mlp_matrices * (a.hidden + a.shared_intermediate) * (a.moe_layers if a.shared_intermediate else 0)
    return float(rank * (mixers + dense + shared))


def updated_parameters(shape: StepShape, local: LocalParameters) -> FloatArray:
    """Return the elements whose optimizer state one GPU holds and updates, per layout.

    Fully sharded: the GPU's shard. Distributed optimizer (ZeRO 1, 2): dense weights over all data ranks, experts over
    the ranks that hold the same experts. No ZeRO: all of the slice.
    """
    expert_ranks = np.maximum(shape.ranks * shape.tp / (shape.ep * shape.etp), 1.0)
    spread = np.where(shape.zero >= 1, local.trained_dense / shape.ranks + local.trained_experts / expert_ranks, 0.0)
    return np.where(shape.fully_sharded, local.trained / shape.shard, np.where(shape.zero >= 1, spread, local.trained))


def signatures(shape: StepShape) -> tuple[IntArray, tuple[Signature, ...]]:
    """Number the layouts by what other stages can see of their weights; equal numbers share one copy.

    `dp` counts all ranks that hold the same slice before sharding (dp * cp * ulysses). Pairs are sorted by field.
    """
    offload = shape.offload_parameters | shape.streams_weights
    fields = {
        "dp": shape.ranks,
        "ep": shape.ep,
        "etp": shape.etp,
        "kind": np.zeros(shape.rows),
        "offload": offload.astype(np.float64),
        "pp": shape.pp,
        # Only full sharding spreads one copy of the weights over ranks; other engines shard the optimizer at most.
        "shard": np.where(shape.fully_sharded, shape.shard, 1.0),
        "tp": shape.tp,
        "vpp": shape.vpp,
        "zero": shape.zero,
    }
    names = sorted(fields)
    columns = [fields[name].astype(np.int64) for name in names]
    _, first, numbers = np.unique(packed(columns), return_index=True, return_inverse=True)
    found = tuple(
        tuple((name, int(column[row])) for name, column in zip(names, columns, strict=True)) for row in first.tolist()
    )
    return numbers.astype(np.int64), found
