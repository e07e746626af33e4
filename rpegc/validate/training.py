"""The training and memory problems: which constants are refitted, and what they start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from rpegc.cost.framework import FrameworkConstants, attention_asymptote, gpu_type
from rpegc.cost.framework_classes import framework_constants
from rpegc.hardware import Figure, Machine
from rpegc.target import FloatArray, IntArray
from rpegc.validate.facts import machine
from rpegc.validate.refit import Constant, Problem
from rpegc.validate.training_rows import Case, with_values

SUSTAINED_SHARE = 0.8
"""Prior of the sustained over the short-run asymptote of matrix products: GPUs at their power limit."""

HALF_POWER_SHARE = 0.6
"""The same of a part with 500 W in place of 700 W: clocks fall a little less than power."""

ATTENTION_SHARE = 0.7
"""Prior of attention in training over the asymptote of the kernel table."""

KNOWN_KERNELS: Mapping[tuple[str, str], float] = {
    ("llm-foundry", "H100"): ATTENTION_SHARE * 3.3e14,  # FlashAttention-2 on Hopper
    ("megatron-bridge", "H100"): 5.6e14,  # cuDNN of 2025: the kernel table
    ("prime-rl", "H100"): 6.3e14,  # FlashAttention-3
    ("prime-rl", "H200"): 6.3e14,
    ("prime-rl", "B200"): 3.3e14,  # FlashAttention-2
    ("torchtitan", "H100"): ATTENTION_SHARE * 3.3e14,  # FlashAttention-2 through SDPA, on a 500 W part
    ("torchtitan", "H200"): 3.3e14,
}
"""Priors where the source names the kernel: benchmarks of FlashAttention-2 (330 TFLOP/s, Azure AI-benchmarking-guide)
and FlashAttention-3 (560 to 700, arXiv 2407.08608)."""

# Field of the framework's constants: prior, spread of the logarithm. Shares without a guess start from one half.
_TIME_PRIORS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "llm-foundry": {"gather_exposed": (0.5, 0.7), "fp8_gemm": (1.8, 0.15)},
    "megatron-bridge": {
        "tensor_exposed": (0.5, 0.5),
        "data_exposed": (0.5, 0.5),
        "moe_layer_s": (2.5e-4, 1.0),
        "fp8_gemm": (1.8, 0.15),
        "permute_bytes": (12.0, 0.5),
        "recurrence_share": (0.03, 0.7),  # tiles of 64 to 128 through kernels written for older tensor cores
    },
    "megatron-bridge eager": {"moe_layer_s": (1e-3, 1.0), "permute_bytes": (12.0, 0.5)},
    "megatron-lm": {"tensor_exposed": (0.8, 0.3), "elementwise": (1.2, 0.3)},
    "torchtitan": {"tensor_exposed": (0.7, 0.4), "gather_exposed": (0.5, 0.7), "fp8_gemm": (1.8, 0.15)},
    "prime-rl": {
        "gather_exposed": (0.3, 0.7),
        "elementwise": (7.0, 0.3),  # unfused norms and rotary embedding in FP32: 3.5 kernels of twice the bytes
        "moe_layer_s": (2e-3, 0.7),
        "lora_traffic": (4.0, 0.7),
        "micro_batch_s": (1e-3, 0.25),
    },
}
# Selective recomputation of torchtitan keeps every second product and the attention output: 0.40 of Llama 3.1 8B.
_MEMORY_PRIORS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "torchtitan": {"selective_memory": (0.4, 0.2), "logit_memory_train": (12.0, 0.3)},
    "torchtitan 2025": {"logit_memory_train": (6.0, 0.3)},
    "prime-rl": {"token_memory": (12.0, 0.3), "mlp_memory": (12.0, 0.3), "route_memory": (18.0, 0.3)},
    "prime-rl sft": {"logit_memory_train": (14.0, 0.3)},
    "megatron-bridge": {"logit_memory_train": (10.0, 0.3)},
}
_TIED = {"gather_exposed": "reduce_exposed", "micro_batch_s": "micro_batch_lora_s"}
"""Fields that take the value of another: both directions of one collective, runs with and without adapters."""

_CLASSES = {
    "prime-rl sft": "prime-rl",
    "megatron-bridge eager": "megatron-bridge",
    "nemo": "megatron-bridge",
    "megatron-lm 2021": "megatron-lm",
    "torchtitan 2025": "torchtitan",
}
"""Price classes that share the constants of another, where they have none of their own."""


def time_problem(cases: list[Case]) -> Problem:
    """Return the problem of step times: sustained clock per GPU, attention per class and GPU, a few per framework."""
    found: dict[str, Constant] = {}
    for case in cases:
        gpu = machine(case.gpu).accelerator
        half_power = HALF_POWER_SHARE if case.gpu == "h100-500w" else SUSTAINED_SHARE
        name = f"gpu {case.gpu} gemm_sustained"
        found[name] = Constant(name, gpu.gemm_sustained.value, half_power * gpu.gemm_asymptote.value, 0.2)
        owner = _attention_owner(case)
        if owner == "megatron-lm":  # its attention is two matrix products
            continue
        constants = framework_constants(case.framework, case.work.engine_class)
        start = attention_asymptote(constants, gpu.name) or gpu.attention_forward_asymptote.value
        kind = gpu_type(gpu.name)
        prior = KNOWN_KERNELS.get((owner, kind), ATTENTION_SHARE * gpu.attention_table_asymptote.value)
        name = f"attention {owner} {kind}"
        found[name] = Constant(name, start, prior, 0.25)
    return _problem(cases, found, _TIME_PRIORS, _seconds, [case.seconds for case in cases])


def memory_problem(cases: list[Case]) -> Problem:
    """Return the problem of peak device memory: bytes per channel, logit and kept activation."""
    return _problem(cases, {}, _MEMORY_PRIORS, _peak_bytes, [case.peak_bytes for case in cases])


def _problem(
    cases: list[Case],
    found: dict[str, Constant],
    priors: Mapping[str, Mapping[str, tuple[float, float]]],
    predict: object,
    measured: list[float],
) -> Problem:
    assert callable(predict)
    for case in cases:
        for owner in (case.framework, _CLASSES.get(case.framework, case.framework)):
            constants = framework_constants(owner, case.work.engine_class)
            for field, (prior, spread) in priors.get(owner, {}).items():
                name = f"framework {owner} {field}"
                found[name] = Constant(name, getattr(constants, field).value, prior, spread)
    constants_in_order = tuple(found[name] for name in sorted(found))
    affects = {
        constant.name: np.array([_affects(constant.name, case) for case in cases], dtype=bool)
        for constant in constants_in_order
    }

    def run(values: Mapping[str, float], rows: IntArray) -> FloatArray:
        return np.array([predict(cases[row], *_setting(cases[row], values)) for row in rows.tolist()])

    return Problem(np.array(measured), [case.model for case in cases], constants_in_order, affects, run, rounds=1)


def _affects(name: str, case: Case) -> bool:
    kind, owner, what = _split(name)
    if kind == "gpu":
        return owner == case.gpu
    if kind == "attention":
        return owner == _attention_owner(case) and what == gpu_type(machine(case.gpu).accelerator.name)
    if not _owns(owner, what, case):
        return False
    mixture = what in ("moe_layer_s", "permute_bytes", "recurrence_share")
    eight_bits = what.startswith("fp8")
    return (case.mixture or not mixture) and ("fp8" in case.work.engine_flags or not eight_bits)


def _attention_owner(case: Case) -> str:
    """Return the class whose attention kernels a case runs; NeMo of 2024 has older ones than Megatron-Bridge."""
    return case.framework if case.framework == "nemo" else _CLASSES.get(case.framework, case.framework)


def _owns(owner: str, what: str, case: Case) -> bool:
    """Whether a price class sets this constant for a case: its own class, or the parent where that says nothing."""
    own = {**_TIME_PRIORS.get(case.framework, {}), **_MEMORY_PRIORS.get(case.framework, {})}
    return owner == case.framework or (owner == _CLASSES.get(case.framework) and what not in own)


def _split(name: str) -> tuple[str, str, str]:
    """Split a constant's name whose owner has blanks."""
    kind, rest = name.split(" ", 1)
    owner, what = rest.rsplit(" ", 1)
    return kind, owner, what


def _setting(case: Case, values: Mapping[str, float]) -> tuple[Machine, FrameworkConstants]:
    """Return machine and framework constants of a case, with these values in place of the shipped ones."""
    constants = framework_constants(case.framework, case.work.engine_class)
    hardware = machine(case.gpu)
    changed: dict[str, object] = {}
    own: dict[str, float] = {}
    known = {field.name for field in fields(FrameworkConstants)}
    kind_of_gpu = gpu_type(hardware.accelerator.name)
    for name, value in values.items():
        kind, owner, what = _split(name)
        if kind == "gpu" and owner == case.gpu:
            own[what] = value
        elif kind == "attention" and what == kind_of_gpu and owner == _attention_owner(case):
            changed["attention"] = {**constants.attention, kind_of_gpu: Figure(value, "fitted", "refitted")}
        elif kind == "framework" and what in known and _owns(owner, what, case):
            for field in (what, _TIED.get(what, what)):
                changed[field] = Figure(value, "fitted", "refitted")
    return with_values(hardware, own), replace(constants, **changed)  # type: ignore[arg-type]


def _seconds(case: Case, hardware: Machine, constants: FrameworkConstants) -> float:
    return case.predicted_seconds(hardware, constants)


def _peak_bytes(case: Case, hardware: Machine, constants: FrameworkConstants) -> float:
    table = case.price(hardware, constants)
    return float(sum(table.bytes(residence)[0] for residence in ("weights", "resident", "working")))
