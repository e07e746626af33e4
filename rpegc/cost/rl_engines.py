"""What RL frameworks and engine modes add to a serving engine: T = factor * rollout + seconds per layer and per token.

Frameworks that are not listed, GPU types and engine modes without published rows widen the interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rpegc.hardware import Figure
from rpegc.units import MICROSECOND

RL_ROWS = (
    "fitted to generation phases in published logs of verl, NeMo-RL and others and to NeMo-RL v0.4 to v0.6 step times"
)


@dataclass(frozen=True, slots=True)
class RolloutConstants:
    """Additions of one framework on one GPU type.

    `factor` multiplies the engine's own seconds, `asynchronous` once more where the rollout has GPUs of its own.
    Seconds per layer and decode step: `eager_layer_s` without CUDA graphs, `lora_layer_s` with adapters,
    `across_layer_s` where a tensor-parallel group leaves its node. `old_engine_sequence_s` per token of an engine with
    the scheduler and sampler of early 2025.
    """

    factor: Figure
    asynchronous: Figure
    eager_layer_s: Figure
    lora_layer_s: Figure
    across_layer_s: Figure
    old_engine_sequence_s: Figure


FRAMEWORK_FACTORS: Mapping[tuple[str, str], Figure] = MappingProxyType(
    {
        ("nemo-rl", "fsdp"): Figure(1.311, "fitted", RL_ROWS),
        ("nemo-rl", "megatron"): Figure(1.234, "fitted", RL_ROWS),
        ("slime", "megatron"): Figure(1.276, "fitted", RL_ROWS),
        ("verl", "fsdp"): Figure(1.235, "fitted", RL_ROWS),
        ("verl", "megatron"): Figure(1.227, "fitted", RL_ROWS),
    }
)
UNKNOWN_FRAMEWORK = Figure(1.243, "fitted", RL_ROWS + "; mean over frameworks")
PLATFORM_FACTORS: Mapping[str, Figure] = MappingProxyType(
    {
        "C550": Figure(1.657, "fitted", RL_ROWS),
        "GB200": Figure(1.134, "fitted", RL_ROWS),
        "H20": Figure(0.987, "fitted", RL_ROWS),
        "L20": Figure(0.941, "fitted", RL_ROWS),
        "MI300X": Figure(2.320, "fitted", RL_ROWS),
        "RTX": Figure(1.240, "fitted", RL_ROWS),
    }
)
"""By GPU type; 1 elsewhere (H100 and H800 define it)."""
FOREIGN_PLATFORM = Figure(1.566, "fitted", RL_ROWS + "; mean of GPUs for which engines were not first written")
ASYNC_FACTOR = Figure(0.891, "fitted", RL_ROWS)
EAGER_LAYER_S = Figure(284.4 * MICROSECOND, "fitted", RL_ROWS)
LORA_LAYER_S = Figure(1484.2 * MICROSECOND, "fitted", RL_ROWS)
ACROSS_NODES_LAYER_S = Figure(88.9 * MICROSECOND, "fitted", RL_ROWS + "; TP 16 and 32 on nodes of 8 GPUs")
OLD_ENGINE_SEQUENCE_S = Figure(58.5 * MICROSECOND, "fitted", RL_ROWS)

# 80 % intervals: seconds / x to seconds * x.
KNOWN_INTERVAL = Figure(1.6, "fitted", RL_ROWS + "; residuals of 1.37, wider by half in the logarithm")
EXTRAPOLATED_INTERVAL = Figure(2.0, "fitted", RL_ROWS + "; a GPU type or a framework left out")
UNSTATED_INTERVAL = Figure(3.0, "fitted", RL_ROWS + "; engine mode not stated")
KNOWN_ON = ("H100", "H800", "H20", "L20", "GB200")
"""GPU types with published RL generation phases. GH200 and H200 have none."""


def rollout_constants(framework: str, engine_class: str, accelerator: str) -> RolloutConstants:
    """Return what a framework adds on an accelerator."""
    factor = FRAMEWORK_FACTORS.get((framework, engine_class), UNKNOWN_FRAMEWORK)
    platform = PLATFORM_FACTORS.get(gpu_type(accelerator))
    if platform is not None:
        factor = Figure(factor.value * platform.value, factor.provenance, factor.source)
    return RolloutConstants(
        factor, ASYNC_FACTOR, EAGER_LAYER_S, LORA_LAYER_S, ACROSS_NODES_LAYER_S, OLD_ENGINE_SEQUENCE_S
    )


def generation_interval(
    framework: str, engine_class: str, accelerator: str, flags: frozenset[str]
) -> tuple[float, float]:
    """Return the multipliers (low, high) of the 80 % interval on generation seconds."""
    known = (framework, engine_class) in FRAMEWORK_FACTORS and gpu_type(accelerator) in KNOWN_ON
    width = KNOWN_INTERVAL.value if known else EXTRAPOLATED_INTERVAL.value
    if flags & {"mode_unstated", "lora"}:  # the adapter rows are of engines two years old
        width = UNSTATED_INTERVAL.value
    return (1.0 / width, width)


def gpu_type(accelerator: str) -> str:
    """Return the type of an accelerator from its name: "H20", not "H200", of "H20-SXM 96 GB"."""
    return accelerator.split()[0].split("-")[0]
