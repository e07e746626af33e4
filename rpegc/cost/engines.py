"""Constants of generation: inference engines and engine memory; what RL adds to them is in `rpegc.cost.rl_engines`.

Efficiencies of memory reads belong to the GPU (`Accelerator.eff_weights`, `eff_kv`); the rest belongs to an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from rpegc.hardware import Figure
from rpegc.units import GB, GIB, MICROSECOND

SERVING = (
    "fitted to 936 published rows of serving at fixed concurrency on H100 and H200: ai-dynamo/aiconfigurator "
    "silicon_sample.csv @095f58a5; leave-one-model-out error 8 % median, 23 % p90"
)
OFFLINE = (
    "fitted to 413 published rows of offline throughput: NVIDIA/TensorRT-LLM docs/source/performance/perf-overview.md "
    "of 0.14, 0.17 and 1.0; leave-one-model-out error 5.1 % median, 15 % p90"
)
VERL_ENGINE = "verl workers/rollout/vllm_rollout/vllm_rollout.py, workers/engine_workers.py"


@dataclass(frozen=True, slots=True)
class EngineConstants:
    """One inference engine.

    Gaps between kernels in seconds: `step_s` per decode step, `layer_s`, `moe_layer_s` and `latent_layer_s` per layer
    of that kind. The scheduler on the host takes `host_s` per step and `sequence_s` per running sequence, while the GPU
    works. `shared_experts_wait`: factor where engines share experts. `allreduce_factor` multiplies NCCL's latency.
    Shares of the peak: `gemm_bf16`,
    `gemm_fp8`, `expert_share` of that for experts with many tokens, half of it at `expert_half_tokens` per expert,
    `attention_share` of the bf16 peak in prefill attention. `prefill_interference`: share of prefill time
    by which decoding is delayed.
    """

    name: str
    step_s: Figure
    layer_s: Figure
    moe_layer_s: Figure
    latent_layer_s: Figure
    host_s: Figure
    sequence_s: Figure
    shared_experts_wait: Figure
    allreduce_factor: Figure
    prefill_interference: Figure
    gemm_bf16: Figure
    gemm_fp8: Figure
    expert_share: Figure
    expert_half_tokens: Figure
    attention_share: Figure


def _fitted(value: float, source: str = SERVING) -> Figure:
    return Figure(value, "fitted", source)


def _engine(
    name: str,
    step_us: float,
    layer_us: float,
    moe_us: float,
    host_us: float,
    sequence_us: float,
    allreduce: float,
    interference: float,
) -> EngineConstants:
    """Return a serving engine: overheads of its own, kernel efficiencies common to all."""
    return EngineConstants(
        name,
        step_s=_fitted(step_us * MICROSECOND),
        layer_s=_fitted(layer_us * MICROSECOND),
        moe_layer_s=_fitted(moe_us * MICROSECOND),
        latent_layer_s=_fitted(12.2 * MICROSECOND),
        host_s=_fitted(host_us * MICROSECOND),
        sequence_s=_fitted(sequence_us * MICROSECOND),
        shared_experts_wait=Figure(1.51, "fitted", OFFLINE + "; rows with data-parallel attention"),
        allreduce_factor=_fitted(allreduce),
        prefill_interference=_fitted(interference),
        gemm_bf16=_fitted(0.796),
        gemm_fp8=_fitted(0.485),
        expert_share=_fitted(0.237),
        expert_half_tokens=_fitted(19.8),
        attention_share=_fitted(0.45),
    )


VLLM = _engine("vllm", 264.4, 24.7, 31.7, 1132.2, 46.3, 1.31, 0.95)
SGLANG = _engine("sglang", 272.2, 27.9, 38.9, 1131.8, 45.5, 1.64, 0.55)
TENSORRT_LLM = _engine("tensorrt-llm", 268.5, 24.7, 33.4, 1138.4, 47.0, 1.33, 0.92)
TENSORRT_LLM_OFFLINE = replace(
    TENSORRT_LLM,
    name="tensorrt-llm-offline",
    step_s=Figure(297.2 * MICROSECOND, "fitted", OFFLINE),
    layer_s=Figure(23.6 * MICROSECOND, "fitted", OFFLINE),
    moe_layer_s=Figure(25.1 * MICROSECOND, "fitted", OFFLINE),
    host_s=Figure(999.0 * MICROSECOND, "fitted", OFFLINE),
    sequence_s=Figure(9.6 * MICROSECOND, "fitted", OFFLINE),
    allreduce_factor=Figure(5.49, "fitted", OFFLINE + "; soaks up other costs of tensor parallelism at large batches"),
    prefill_interference=Figure(0.958, "fitted", OFFLINE),
    gemm_bf16=Figure(0.675, "fitted", OFFLINE),
    gemm_fp8=Figure(0.695, "fitted", OFFLINE),
    expert_share=Figure(0.791, "fitted", OFFLINE),
    expert_half_tokens=Figure(11.3, "fitted", OFFLINE),
)
ENGINES: Mapping[str, EngineConstants] = MappingProxyType(
    {engine.name: engine for engine in (VLLM, SGLANG, TENSORRT_LLM, TENSORRT_LLM_OFFLINE)}
)

ENGINE_FLAGS = MappingProxyType(
    {
        "sglang": "the engine is SGLang (default: vLLM)",
        "tensorrt-llm": "the engine is TensorRT-LLM behind a server",
        "tensorrt-llm-offline": "the engine is TensorRT-LLM's offline API",
        "eager": "no CUDA graphs (`enforce_eager`)",
        "old_engine": "vLLM before its V1 engine: slow scheduler and sampler",
        "lora": "the engine serves LoRA adapters",
        "async": "the rollout runs in asynchronous mode on GPUs of its own",
        "no_prefix_caching": "every sample reads its own prompt",
        "kv_fp8": "KV cache in FP8",
        "mode_unstated": "nothing is known about graphs, adapters and engine version",
    }
)
"""Words of `StageWork.engine_flags` that change the price of generation; others are ignored."""

ROUTING_EXPONENT = Figure(
    0.8, "fitted", SERVING + "; even routing (1) leaves 10.5 / 26.9 % on models left out, this 9.5 / 24.8 %"
)
STAGE_HOP_S = Figure(15.0 * MICROSECOND, "assumed", "send of one hidden state to the next pipeline stage")

# Memory.
WORKSPACE_BASE_BYTES = Figure(
    2.0 * GB, "fitted", OFFLINE + "; 3.0 GB per GPU in all, of which about 1 GB is the activation peak below"
)
ALONE_WORKSPACE_SHARE = Figure(
    0.25, "assumed", "of that base, without peers: no communicators, no buffers of a custom all-reduce"
)
LOGIT_COPIES = Figure(3.0, "assumed", "sampler: FP32 logits, their sorted copy and probabilities")
RESIDUE_BYTES = Figure(
    1.5 * GIB, "assumed", "CUDA context, communicators and captured graphs outside the engine's share, kept asleep"
)
ENGINE_PROCESS_BYTES = Figure(6.0 * GIB, "assumed", "resident set of one engine worker process with torch and CUDA")
SLEEP_LEVEL_SOURCE = (
    f"{VERL_ENGINE}: sleep level 2 drops the weights (the next sync brings new ones); level 1 with LoRA adapters "
    "copies the base weights to host memory"
)


def engine_of(flags: frozenset[str]) -> EngineConstants:
    """Return the constants of the engine that the flags name; vLLM if they name none."""
    for name in ENGINES:
        if name in flags:
            return ENGINES[name]
    return VLLM
