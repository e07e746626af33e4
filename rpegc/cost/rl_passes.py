"""What RL frameworks add to log-probability passes and updates: a factor by framework class, one by GPU type, seconds.

Factors are shrunk towards what all classes have in common; `rpegc validate` refits them without what it predicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rpegc.cost.constants import RL_LOGS, fitted
from rpegc.hardware import Figure
from rpegc.units import MILLISECOND

UNKNOWN_TRAINING = fitted(1.147, RL_LOGS + "; mean over frameworks")
UNKNOWN_FORWARD = fitted(1.154, RL_LOGS + "; mean over frameworks")
TRAINING_FACTORS: Mapping[tuple[str, str], Figure] = MappingProxyType(
    {
        ("nemo-rl", "fsdp"): fitted(1.391, RL_LOGS),
        ("nemo-rl", "megatron"): fitted(1.056, RL_LOGS),
        ("slime", "megatron"): fitted(1.383, RL_LOGS),
        ("verl", "fsdp"): fitted(1.111, RL_LOGS),
        ("verl", "megatron"): fitted(1.142, RL_LOGS),
    }
)
FORWARD_FACTORS: Mapping[tuple[str, str], Figure] = MappingProxyType(
    {
        ("nemo-rl", "fsdp"): fitted(1.039, RL_LOGS),
        ("nemo-rl", "megatron"): fitted(1.111, RL_LOGS),
        ("slime", "megatron"): fitted(1.661, RL_LOGS),
        ("verl", "fsdp"): fitted(0.996, RL_LOGS),
        ("verl", "megatron"): fitted(1.452, RL_LOGS),
    }
)
PLATFORMS: Mapping[str, Figure] = MappingProxyType(
    {
        "C550": fitted(0.985, RL_LOGS),
        "GB200": fitted(1.136, RL_LOGS),
        "H20": fitted(0.976, RL_LOGS),
        "L20": fitted(1.272, RL_LOGS),
        "MI300X": fitted(1.348, RL_LOGS),
        "RTX": fitted(1.092, RL_LOGS),
    }
)
"""Factor on passes and updates by GPU type; 1 elsewhere (H100 and H800 define it)."""
MIXTURE = fitted(2.023, RL_LOGS)
ONLOAD_S = fitted(1.371, RL_LOGS)
MICRO_BATCH_FSDP_S = fitted(0.757 * MILLISECOND, RL_LOGS)
MICRO_BATCH_MEGATRON_S = fitted(0.530 * MILLISECOND, RL_LOGS)
MICRO_BATCH_LORA_S = fitted(3.794 * MILLISECOND, RL_LOGS)
