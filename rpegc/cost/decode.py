"""Seconds of one decode step and of a prefill, for whole tables of engine layouts.

A decode step extends every running sequence of an engine by one token:

    dense    = smooth maximum of weights / (e_w BW) and FLOPs / (e_c peak)
    experts  = ((touched experts' weights / (e_w BW))^2 + (FLOPs / (e_c e_e m / (m + m_half) peak))^2)^(1/2)
    kv       = sequences * (context * kv_bytes / shards + state) / (e_kv BW)
    tensor   = all-reduces of the hidden states: two a layer
    kernels  = gaps per step, per layer, per MoE and latent layer; element-wise traffic per sequence
    overhead = kernels, and what the scheduler on the host (per step and per sequence) takes longer than the GPU

The smooth maximum of a and b is (a^8 + b^8)^(1/8): the two overlap. Touched experts = E (1 - (1 - k / E)^(b^s)):
routers prefer some experts, so b tokens touch as many as b^s that choose evenly. Tokens per touched expert
m = b k / touched.
Form and constants: see the sources in `rpegc.cost.engines`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpegc.architecture import Architecture, LatentAttention, ScoreMixer
from rpegc.cost.collectives import collective_seconds
from rpegc.cost.constants import FP8_CAST_BYTES
from rpegc.cost.engines import ROUTING_EXPONENT, STAGE_HOP_S, EngineConstants
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
    mesh uses on a node. `fp8` says whether matrices multiply in FP8. `expert_bytes` and `expert_fp8` are the same of
    the routed experts where these have a format of their own (4 bits, multiplied in BF16).
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

    `kv_token_s` is that of the layers that see every token, `kv_windows` of the others, `state_s` per sequence.
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
    kv_windows: tuple[tuple[ScoreMixer, FloatArray], ...]
    state_s: FloatArray
    reduce_step_s: FloatArray
    reduce_sequence_s: FloatArray
    wait: FloatArray
    step_s: FloatArray
    elementwise_s: FloatArray
    host_s: FloatArray
    sequence_s: FloatArray

    def rows(self, rows: IntArray) -> DecodeModel:
        """Return the coefficients of some rows, by number."""
        arrays = {
            name: getattr(self, name)[rows]
            for name in self.__slots__
            if name not in ("experts", "visits", "half_tokens", "kv_windows")
        }
        windows = tuple((mixer, seconds[rows]) for mixer, seconds in self.kv_windows)
        return DecodeModel(self.experts, self.visits, self.half_tokens, kv_windows=windows, **arrays)

    def step(self, active: FloatArray, context: FloatArray, tokens: float = 1.0) -> StepTerms:
        """Return the seconds of a step with `active` sequences of `context` tokens each, shape (rows, points).

        The step runs `tokens` new tokens of each sequence through the model: 1, or drafts to be verified as well.

        With pp stages every stage works on one of pp micro-batches; a step lasts as long as a micro-batch of
        active / pp sequences takes through all layers.
        """
        batch = np.maximum(active / self.stages, np.minimum(active, 1.0))
        read = batch * tokens
        weights = _larger(self.dense_read_s, self.dense_compute_s * read)
        experts = self._experts(read) if self.experts else np.zeros_like(batch)
        cache = self._cache(batch, context)
        reduces = self.reduce_step_s + self.reduce_sequence_s * read
        kernels = self.step_s + self.elementwise_s * read
        others = weights + experts + cache + reduces
        whole = _larger(others + kernels, self.host_s + self.sequence_s * active)
        return StepTerms(weights, experts, cache, reduces, self.wait * whole - others)

    def _cache(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        """Reading keys and values of all sequences, and the states of recurrent layers."""
        seconds = self.kv_token_s * batch * context
        for mixer, token_s in self.kv_windows:
            reach = (mixer.reach + 1) / 2 if mixer.chunked else float(mixer.reach)
            seconds = seconds + token_s * batch * np.minimum(context, reach)
        return seconds + self.state_s * batch

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
    """Return a smooth maximum of two times that overlap: (a^8 + b^8)^(1/8)."""
    a, b = np.square(np.square(first)), np.square(np.square(second))
    return np.asarray(np.sqrt(np.sqrt(np.sqrt(a * a + b * b))))


def decode_model(
    architecture: Architecture, machine: Machine, engine: EngineConstants, shape: EngineShape
) -> DecodeModel:
    """Return the coefficients of decoding for all rows."""
    gpu = machine.accelerator
    gemm, expert_gemm = _gemm_rates(machine, engine, shape)
    expert_bytes = shape.weight_bytes if shape.expert_bytes is None else shape.expert_bytes
    weight_rate = gpu.hbm_bandwidth.value * gpu.eff_weights.value
    matrices, expert = matrix_parameters(architecture), float(architecture.expert_parameters)
    head = float(architecture.embedding_parameters)
    dense_bytes = matrices * shape.weight_bytes + head * (HEAD_BYTES - shape.weight_bytes)
    visits = float(architecture.experts_per_token)
    moe_layers = architecture.moe_layers if architecture.experts else 0
    kv_rate = gpu.hbm_bandwidth.value * gpu.eff_kv.value
    token_s = {mixer: _kv_token_seconds(mixer, machine, engine, shape) for mixer in architecture.score_mixers}
    reduce_step, reduce_sequence = _all_reduce(architecture, machine, engine, shape)
    hops = np.where(shape.pp > 1, STAGE_HOP_S.value * shape.pp, 0.0)
    step = (
        engine.step_s.value + engine.layer_s.value * whole_layers(architecture) + engine.moe_layer_s.value * moe_layers
    )
    step += engine.latent_layer_s.value * latent_layers(architecture)
    column = {
        "stages": shape.pp.astype(np.float64),
        "expert_streams": shape.engine_dp.astype(np.float64),
        "dense_read_s": dense_bytes / shape.tp / weight_rate,
        "dense_compute_s": 2.0 * matrices / shape.tp / gemm,
        "expert_read_s": moe_layers * expert * expert_bytes / shape.group / weight_rate,
        "expert_compute_s": 2.0
        * moe_layers
        * visits
        * expert
        / shape.group
        / (expert_gemm * engine.expert_share.value),
        "kv_token_s": sum((s for mixer, s in token_s.items() if not mixer.reach), start=np.zeros(len(shape.tp))),
        "state_s": 2.0 * architecture.state_bytes / shape.tp / kv_rate,
        "reduce_step_s": reduce_step,
        "reduce_sequence_s": reduce_sequence,
        "step_s": step + hops,
        "wait": _wait(architecture, engine, shape),
        "elementwise_s": elementwise_bytes(architecture, shape) / gpu.hbm_achieved.value,
        "host_s": np.full(len(shape.tp), engine.host_s.value),
        "sequence_s": np.full(len(shape.tp), engine.sequence_s.value),
    }
    return DecodeModel(
        architecture.experts if moe_layers else 0,
        architecture.experts_per_token,
        engine.expert_half_tokens.value,
        kv_windows=tuple((mixer, seconds[:, None]) for mixer, seconds in token_s.items() if mixer.reach),
        **{name: np.asarray(value, dtype=np.float64)[:, None] for name, value in column.items()},
    )


def _kv_token_seconds(mixer: ScoreMixer, machine: Machine, engine: EngineConstants, shape: EngineShape) -> FloatArray:
    """Return seconds per sequence and cached token in which a kind of layer reads its cache.

    Latent attention scores the latent with all heads (4 h w FLOP a token, w = `absorbed_width`), which can take longer
    than reading it: then that counts. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.2.
    """
    gpu = machine.accelerator
    kv_rate = gpu.hbm_bandwidth.value * gpu.eff_kv.value
    read = mixer.layers * mixer.cache_elements * shape.kv_bytes / np.minimum(shape.tp, mixer.cache_heads) / kv_rate
    if not isinstance(mixer, LatentAttention):
        return np.asarray(read)
    flops = 4.0 * mixer.layers * mixer.heads * mixer.absorbed_width / shape.tp
    return np.maximum(read, flops / (engine.attention_share.value * gpu.peak_bf16.value))


def elementwise_bytes(architecture: Architecture, shape: EngineShape) -> FloatArray:
    """Return the bytes that element-wise kernels move per token in all layers: norms, rotary, activation, FP8 casts.

    Per layer 2 (5 norms H + (c + 3 I) / tp), c channels of its mixer, and 1.53 (6 H + 3 (I + w) / tp) where inputs are
    cast to FP8, w the width of what the mixer hands on: the counts of `rpegc.cost.layer`.
    """
    a = architecture
    moe = a.moe_layers * (a.experts_per_token * a.expert_intermediate + a.shared_intermediate)
    width = 3.0 * (a.dense_layers * a.intermediate + moe)
    channels = sum(mixer.layers * mixer.channels for mixer in a.mixers)
    inner = sum(mixer.layers * mixer.matrices(a.hidden)[-1].depth for mixer in a.mixers)
    plain = 2.0 * (5.0 * a.layer_norms * a.layers * a.hidden + (channels + width) / shape.tp)
    casts = FP8_CAST_BYTES.value * (6.0 * a.layers * a.hidden + (width + 3.0 * inner) / shape.tp)
    return np.asarray(plain + shape.fp8 * casts)


def _wait(architecture: Architecture, engine: EngineConstants, shape: EngineShape) -> FloatArray:
    """Return the factor by which engines that share experts wait for the slowest of them and the busiest expert."""
    shares = (shape.engine_dp > 1) & (architecture.experts > 0)
    return np.where(shares, engine.shared_experts_wait.value, 1.0)


def latent_layers(architecture: Architecture) -> int:
    """Return the layers of multi-head latent attention."""
    return sum(mixer.layers for mixer in architecture.mixers if isinstance(mixer, LatentAttention))


def _score_flops(
    architecture: Architecture, tokens: float | FloatArray, squared_tokens: float | FloatArray
) -> float | FloatArray:
    if np.ndim(tokens) == 0:
        return architecture.prefill_score_flops(float(tokens), float(squared_tokens))
    pairs = zip(np.asarray(tokens).tolist(), np.asarray(squared_tokens).tolist(), strict=True)
    return np.array([architecture.prefill_score_flops(mean, squared) for mean, squared in pairs])


def _gemm_rates(machine: Machine, engine: EngineConstants, shape: EngineShape) -> tuple[FloatArray, FloatArray]:
    """Return the rates (FLOP/s) of dense matrices and of experts with many tokens, before `expert_share`."""
    gpu = machine.accelerator
    fast, slow = gpu.peak_fp8.value * engine.gemm_fp8.value, gpu.peak_bf16.value * engine.gemm_bf16.value
    dense = np.where(shape.fp8 > 0, fast, slow)
    return dense, dense if shape.expert_fp8 is None else np.where(shape.expert_fp8 > 0, fast, slow)


def whole_layers(architecture: Architecture) -> float:
    """Return the layers by their blocks: two of a mixer alone or an MLP alone count as one."""
    blocks = architecture.mixer_layers + architecture.layers - architecture.bare_layers
    return blocks / 2


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
    dense = 2.0 * matrix_parameters(architecture) * tokens / shape.tp / gemm
    attention_flops = _score_flops(architecture, tokens, squared_tokens)
    attention = attention_flops / shape.tp / (engine.attention_share.value * gpu.peak_bf16.value)
    total = dense + attention
    if architecture.experts:
        visits = architecture.experts_per_token
        per_expert = np.maximum(batch_tokens * visits / architecture.experts, 1.0)
        flops = 2.0 * architecture.moe_layers * visits * architecture.expert_parameters * tokens / shape.tp
        total = total + flops / (expert_gemm * engine.expert_share.value) * (
            1.0 + engine.expert_half_tokens.value / per_expert
        )
    total = total + tokens * elementwise_bytes(architecture, shape) / gpu.hbm_achieved.value
    total = total + tokens * _all_reduce(architecture, machine, engine, shape)[1]
    return np.asarray(_wait(architecture, engine, shape) * total)


def _all_reduce(
    architecture: Architecture, machine: Machine, engine: EngineConstants, shape: EngineShape
) -> tuple[FloatArray, FloatArray]:
    """Return latency per step and seconds per token of the two all-reduces of each layer.

    The one after attention spans the tensor-parallel group; the one after the MLP spans the experts' group, too, where
    several engines of a replica share the experts.
    """
    layers, hidden_bytes = architecture.layers, architecture.hidden * ACTIVATION_BYTES
    mixers, feed_forwards = architecture.mixer_layers / layers, 1.0 - architecture.bare_layers / layers
    latency, per_byte = _all_reduce_line(machine, shape.tp, shape.gpus_per_node)
    outer = np.where(architecture.experts > 0, shape.group, shape.tp)
    outer_latency, outer_per_byte = _all_reduce_line(machine, outer, shape.gpus_per_node)
    step = layers * engine.allreduce_factor.value * (mixers * latency + feed_forwards * outer_latency)
    token = layers * hidden_bytes * (mixers * per_byte + feed_forwards * outer_per_byte * outer / shape.tp)
    return step, token


def _all_reduce_line(machine: Machine, members: IntArray, gpus_per_node: int) -> tuple[FloatArray, FloatArray]:
    """Return latency and seconds per byte of an all-reduce, per row; both 0 for one member."""
    in_node = np.minimum(members, gpus_per_node)
    latency = collective_seconds(machine, "all_reduce", _LATENCY_BYTES, members, in_node)
    bulk = collective_seconds(machine, "all_reduce", _BULK_BYTES, members, in_node)
    return latency, np.maximum(bulk - latency, 0.0) / (_BULK_BYTES - _LATENCY_BYTES)
