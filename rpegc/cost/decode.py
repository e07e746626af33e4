"""Seconds of one decode step and of a prefill, for whole tables of engine layouts.

A decode step extends every running sequence of an engine by one token:

    dense    = smooth maximum of weights / (e_w BW) and FLOPs / (e_c peak)
    experts  = ((touched experts' weights / (e_w BW))^2 + (FLOPs / (e_c e_e m / (m + m_half) peak))^2)^(1/2)
    kv       = sequences * (context * kv_bytes / shards + state) / (e_kv BW)
    tensor   = all-reduces of the hidden states: two a layer
    kernels  = gaps per step, per layer, per MoE and latent layer; element-wise traffic per sequence
    overhead = kernels, and what the scheduler on the host (per step and per sequence) takes longer than the GPU

The smooth maximum of a and b is (a^6 + b^6)^(1/6): the two overlap. Touched experts = E (1 - (1 - k / E)^(b^s)): routers
prefer some experts, so b tokens touch as many as b^s that choose evenly. Tokens per touched expert m = b k / touched.
Form and constants: see the sources in `rpegc.cost.engines`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.collectives import collective_seconds
from rpegc.cost.constants import FP8_CAST_BYTES
from rpegc.cost.engines import ROUTING_EXPONENT, STAGE_HOP_S, EngineConstants
from rpegc.cost.kv_cache import cache_profile
from rpegc.hardware import Machine
from rpegc.target import FloatArray, IntArray

_LATENCY_BYTES = 8192.0  # the message whose all-reduce time counts as latency
_BULK_BYTES = 64.0 * 1024 * 1024
ACTIVATION_BYTES = 2.0
HEAD_BYTES = 2.0  # quantised checkpoints keep the vocabulary projection in BF16


@dataclass(frozen=True, slots=True)
class EngineShape:
    """How each row splits the model: arrays of one length; `group` GPUs share the experts (tp * engine_dp).

    `weight_bytes` and `kv_bytes` are bytes per element of matrices and of the KV cache; `gpus_per_node` those that the
    mesh uses on a node. `fp8` says whether matrices multiply in FP8. `expert_bytes` and `expert_fp8` are the same of the
    routed experts where these have a format of their own (4 bits, multiplied in BF16).
    """

    tp: IntArray
    pp: IntArray
    engine_dp: IntArray
    fp8: FloatArray
    weight_bytes: FloatArray
    kv_bytes: FloatArray
    gpus_per_node: int
    expert_bytes: FloatArray | None = None
    expert_fp8: FloatArray | None = None

    @property
    def group(self) -> IntArray:
        """GPUs that share the experts of one pipeline stage."""
        return self.tp * self.engine_dp


@dataclass(frozen=True, slots=True)
class StepTerms:
    """Seconds of one decode step by cause; `engine_overhead` is the engine's own, without RL additions."""

    weights_read: FloatArray
    expert_read: FloatArray
    kv_read: FloatArray
    tensor_parallel: FloatArray
    engine_overhead: FloatArray

    @property
    def total(self) -> FloatArray:
        """All of them."""
        return self.weights_read + self.expert_read + self.kv_read + self.tensor_parallel + self.engine_overhead


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """Coefficients per row, shape (rows, 1): read times in seconds, rates in seconds per sequence or token.

    `experts` of the model, `visits` of one token, all in one pipeline. `stages` = pp micro-batches in flight.
    """

    experts: int
    visits: int
    half_tokens: float
    stages: FloatArray
    expert_streams: FloatArray
    dense_read_s: FloatArray
    dense_compute_s: FloatArray
    expert_read_s: FloatArray
    expert_compute_s: FloatArray
    kv_token_s: FloatArray
    window_token_s: FloatArray
    window_tokens: FloatArray
    state_s: FloatArray
    reduce_step_s: FloatArray
    reduce_sequence_s: FloatArray
    step_s: FloatArray
    elementwise_s: FloatArray
    host_s: FloatArray
    sequence_s: FloatArray

    def rows(self, start: int, stop: int) -> DecodeModel:
        """Return the coefficients of some rows."""
        arrays = {
            name: getattr(self, name)[start:stop]
            for name in self.__slots__
            if name not in ("experts", "visits", "half_tokens")
        }
        return DecodeModel(self.experts, self.visits, self.half_tokens, **arrays)

    def step(self, active: FloatArray, context: FloatArray) -> StepTerms:
        """Return the seconds of a step with `active` sequences of `context` tokens each, shape (rows, points).

        With pp stages every stage works on one of pp micro-batches; a step lasts as long as a micro-batch of
        active / pp sequences takes through all layers.
        """
        batch = np.maximum(active / self.stages, np.minimum(active, 1.0))
        weights = _larger(self.dense_read_s, self.dense_compute_s * batch)
        experts = self._experts(batch) if self.experts else np.zeros_like(batch)
        cache = batch * (
            self.kv_token_s * context + self.window_token_s * np.minimum(context, self.window_tokens) + self.state_s
        )
        reduces = self.reduce_step_s + self.reduce_sequence_s * batch
        kernels = self.step_s + self.elementwise_s * batch
        gpu = weights + experts + cache + reduces + kernels
        host = self.host_s + self.sequence_s * active
        overhead = kernels + _larger(gpu, host) - gpu
        return StepTerms(weights, experts, cache, reduces, overhead)

    def _experts(self, batch: FloatArray) -> FloatArray:
        """All engines of a replica step together and share the experts (`expert_streams` of them)."""
        tokens = np.maximum(batch * self.expert_streams, 1.0)
        stay_away = np.log1p(-min(self.visits / self.experts, 1.0 - 1e-12))
        touched = self.experts * -np.expm1(tokens**ROUTING_EXPONENT.value * stay_away)
        per_expert = tokens * self.visits / touched
        compute = self.expert_compute_s * tokens * (1.0 + self.half_tokens / per_expert)
        read = self.expert_read_s * touched
        return np.asarray(np.sqrt(np.square(read) + np.square(compute)))


def _larger(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return a smooth maximum of two times that overlap: (a^6 + b^6)^(1/6)."""
    total = np.power(first * first, 3) + np.power(second * second, 3)
    return np.asarray(np.power(total, 1.0 / 6.0))


def decode_model(
    architecture: Architecture, machine: Machine, engine: EngineConstants, shape: EngineShape
) -> DecodeModel:
    """Return the coefficients of decoding for all rows."""
    gpu = machine.accelerator
    gemm, expert_gemm = _gemm_rates(machine, engine, shape)
    expert_bytes = shape.weight_bytes if shape.expert_bytes is None else shape.expert_bytes
    cache = cache_profile(architecture)
    weight_rate = gpu.hbm_bandwidth.value * gpu.eff_weights.value
    matrices, expert = matrix_parameters(architecture), float(architecture.expert_parameters)
    head = float(architecture.embedding_parameters)
    visits = float(architecture.experts_per_token)
    moe_layers = architecture.moe_layers if architecture.experts else 0
    kv_share = np.minimum(shape.tp, cache.shards)
    kv_rate = gpu.hbm_bandwidth.value * gpu.eff_kv.value
    reduce_step, reduce_sequence = _all_reduce(architecture, machine, engine, shape)
    hops = np.where(shape.pp > 1, STAGE_HOP_S.value * shape.pp, 0.0)
    step = engine.step_s.value + engine.layer_s.value * architecture.layers + engine.moe_layer_s.value * moe_layers
    step += engine.latent_layer_s.value * cache.latent_layers
    column = {
        "stages": shape.pp.astype(np.float64),
        "expert_streams": shape.engine_dp.astype(np.float64),
        "dense_read_s": (matrices * shape.weight_bytes + head * (HEAD_BYTES - shape.weight_bytes))
        / shape.tp
        / weight_rate,
        "dense_compute_s": 2.0 * matrices / shape.tp / gemm,
        "expert_read_s": moe_layers * expert * expert_bytes / shape.group / weight_rate,
        "expert_compute_s": 2.0 * moe_layers * visits * expert / shape.group / (expert_gemm * engine.expert_share.value),
        "kv_token_s": cache.whole * shape.kv_bytes / kv_share / kv_rate,
        "window_token_s": cache.windowed * shape.kv_bytes / kv_share / kv_rate,
        "window_tokens": np.full(len(shape.tp), cache.window),
        "state_s": 2.0 * cache.state_bytes / shape.tp / kv_rate,
        "reduce_step_s": reduce_step,
        "reduce_sequence_s": reduce_sequence,
        "step_s": step + hops,
        "elementwise_s": elementwise_bytes(architecture, shape) / gpu.hbm_achieved.value,
        "host_s": np.full(len(shape.tp), engine.host_s.value),
        "sequence_s": np.full(len(shape.tp), engine.sequence_s.value),
    }
    return DecodeModel(
        architecture.experts if moe_layers else 0,
        architecture.experts_per_token,
        engine.expert_half_tokens.value,
        **{name: np.asarray(value, dtype=np.float64)[:, None] for name, value in column.items()},
    )


def elementwise_bytes(architecture: Architecture, shape: EngineShape) -> FloatArray:
    """Return the bytes that element-wise kernels move per token in all layers: norms, rotary, activation, FP8 casts.

    Per layer 2 (10 H + 2 (h + kv) d / tp + 3 I / tp), and 1.53 (6 H + 3 (I + h d) / tp) where inputs are cast to FP8:
    the counts of `rpegc.cost.layer`.
    """
    a = architecture
    heads = (a.heads + a.kv_heads) * a.head_dim
    moe = a.moe_layers * (a.experts_per_token * a.expert_intermediate + a.shared_intermediate)
    width = (a.dense_layers * a.intermediate + moe) / a.layers
    plain = 2.0 * (10.0 * a.hidden + (2.0 * heads + 3.0 * width) / shape.tp)
    casts = FP8_CAST_BYTES.value * (6.0 * a.hidden + 3.0 * (width + a.heads * a.head_dim) / shape.tp)
    return np.asarray(a.layers * (plain + shape.fp8 * casts))


def _gemm_rates(machine: Machine, engine: EngineConstants, shape: EngineShape) -> tuple[FloatArray, FloatArray]:
    """Return the rates (FLOP/s) of dense matrices and of experts with many tokens, before `expert_share`."""
    gpu = machine.accelerator
    fast, slow = gpu.peak_fp8.value * engine.gemm_fp8.value, gpu.peak_bf16.value * engine.gemm_bf16.value
    dense = np.where(shape.fp8 > 0, fast, slow)
    return dense, dense if shape.expert_fp8 is None else np.where(shape.expert_fp8 > 0, fast, slow)


def matrix_parameters(architecture: Architecture) -> float:
    """Return the weights outside the routed experts that every decode step reads: all but an untied embedding."""
    unread = 0 if architecture.tied_embeddings else architecture.embedding_parameters
    return float(architecture.dense_parameters - unread)


def prefill_seconds(
    architecture: Architecture,
    machine: Machine,
    engine: EngineConstants,
    shape: EngineShape,
    tokens: float | FloatArray,
    squared_tokens: float | FloatArray,
    batch_tokens: FloatArray,
) -> FloatArray:
    """Return the seconds per row to read one prompt of `tokens` tokens (mean; `squared_tokens` = mean square).

    Prompts run in batches of `batch_tokens` tokens, which sets how many tokens meet in one expert. Matrices, experts,
    causal attention (2 heads head_dim tokens^2 a layer) and all-reduce bytes. Source: see `rpegc.cost.engines`.
    """
    gpu = machine.accelerator
    gemm, expert_gemm = _gemm_rates(machine, engine, shape)
    cache = cache_profile(architecture)
    dense = 2.0 * matrix_parameters(architecture) * tokens / shape.tp / gemm
    near = 2.0 * cache.window * tokens if cache.window else 0.0
    attention_flops = 2.0 * (
        cache.score_width * squared_tokens + cache.windowed_score_width * np.minimum(squared_tokens, near)
    )
    attention = attention_flops / shape.tp / (engine.attention_share.value * gpu.peak_bf16.value)
    total = dense + attention
    if architecture.experts:
        visits = architecture.experts_per_token
        per_expert = np.maximum(batch_tokens * visits / architecture.experts, 1.0)
        flops = 2.0 * architecture.moe_layers * visits * architecture.expert_parameters * tokens / shape.tp
        total = total + flops / (expert_gemm * engine.expert_share.value) * (
            1.0 + engine.expert_half_tokens.value / per_expert
        )
    total = total + tokens * elementwise_bytes(architecture, shape) / machine.accelerator.hbm_achieved.value
    return np.asarray(total + tokens * _all_reduce(architecture, machine, engine, shape)[1])


def _all_reduce(
    architecture: Architecture, machine: Machine, engine: EngineConstants, shape: EngineShape
) -> tuple[FloatArray, FloatArray]:
    """Return latency per step and seconds per token of the two all-reduces of each layer.

    The one after attention spans the tensor-parallel group; the one after the MLP spans the experts' group, too, where
    several engines of a replica share the experts.
    """
    layers, hidden_bytes = architecture.layers, architecture.hidden * ACTIVATION_BYTES
    latency, per_byte = _all_reduce_line(machine, shape.tp, shape.gpus_per_node)
    outer = np.where(architecture.experts > 0, shape.group, shape.tp)
    outer_latency, outer_per_byte = _all_reduce_line(machine, outer, shape.gpus_per_node)
    step = layers * engine.allreduce_factor.value * (latency + outer_latency)
    token = layers * hidden_bytes * (per_byte + outer_per_byte * outer / shape.tp)
    return step, token


def _all_reduce_line(machine: Machine, members: IntArray, gpus_per_node: int) -> tuple[FloatArray, FloatArray]:
    """Return latency and seconds per byte of an all-reduce, per row; both 0 for one member."""
    in_node = np.minimum(members, gpus_per_node)
    latency = collective_seconds(machine, "all_reduce", _LATENCY_BYTES, members, in_node)
    bulk = collective_seconds(machine, "all_reduce", _BULK_BYTES, members, in_node)
    return latency, np.maximum(bulk - latency, 0.0) / (_BULK_BYTES - _LATENCY_BYTES)
