"""The problem of generation rows: overheads of each engine near those of all, kernel shares, memory efficiencies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from rpegc.cost.decode import latent_layers
from rpegc.cost.engines import ENGINES, EngineConstants
from rpegc.hardware import Machine
from rpegc.target import FloatArray, IntArray
from rpegc.validate.facts import machine
from rpegc.validate.generation_rows import RELEASES, GenerationCase, offline_rollout, offline_seconds, serving_seconds
from rpegc.validate.refit import Constant, Problem
from rpegc.validate.training_rows import with_values

DEVIATION = 0.1
"""How far an engine's overhead may lie from that of all engines (of the logarithm)."""

BURST_INTERFERENCE = 0.55
"""SGLang reads all waiting prompts before it decodes: of a burst, a request waits for half of the others' prompts."""

_SERVING_OWN: Mapping[str, tuple[float, float]] = {
    "step_s": (0.3e-3, 0.5),
    "layer_s": (25e-6, 0.2),
    "moe_layer_s": (30e-6, 0.3),
    "host_s": (1.0e-3, 0.5),
    "sequence_s": (50e-6, 0.5),
    "allreduce_factor": (1.0, 0.3),
    "prefill_interference": (1.0, 0.3),
}
_SERVING_COMMON: Mapping[str, tuple[float, float]] = {
    "gemm_bf16": (0.75, 0.1),
    "gemm_fp8": (0.55, 0.15),
    "expert_share": (0.4, 0.4),
    "expert_half_tokens": (12.0, 0.5),
    "latent_layer_s": (15e-6, 0.7),
}
_GPU: Mapping[str, tuple[float, float]] = {"eff_weights": (0.84, 0.03), "eff_kv": (0.80, 0.03)}
_HOPPER = ("h100-dgx", "h200-dgx", "gh200-alps", "h20", "h800")
_OFFLINE: Mapping[str, tuple[float, float]] = {
    "step_s": (0.3e-3, 0.5),
    "layer_s": (25e-6, 0.4),
    "moe_layer_s": (30e-6, 0.3),
    "host_s": (1.0e-3, 0.5),
    "sequence_s": (10e-6, 0.7),
    "allreduce_factor": (4.0, 0.7),
    "prefill_interference": (1.0, 0.05),
    "gemm_bf16": (0.65, 0.1),
    "gemm_fp8": (0.62, 0.1),
    "expert_share": (0.75, 0.2),
    "expert_half_tokens": (12.0, 0.5),
    "shared_experts_wait": (1.4, 0.1),
}
RELEASE_SPREAD = 0.1
"""Of the logarithm of an engine release's seconds over those of the newest: 0.14 and 0.17 differ by 7.7 %."""

_LATENT = "latent_layer_s"
_MIXTURE = ("moe_layer_s", "expert_share", "expert_half_tokens")


def generation_problem(cases: list[GenerationCase], offline: bool) -> Problem:
    """Return the problem of serving or offline rows: overheads per engine, kernel shares common to all."""
    own = _OFFLINE if offline else _SERVING_OWN
    common = {} if offline else _SERVING_COMMON
    constants: list[Constant] = []
    affects: dict[str, np.ndarray] = {}
    engines = np.array([case.engine for case in cases])
    gpus = np.array([_chip(case.gpu) for case in cases])
    mixture = np.array([case.architecture.experts > 0 for case in cases], dtype=bool)
    latent = np.array([latent_layers(case.architecture) > 0 for case in cases], dtype=bool)
    fp8 = np.array([case.shape[0] > 0 for case in cases], dtype=bool)

    def concerned(name: str) -> np.ndarray:
        rows = np.ones(len(cases), dtype=bool)
        if name in _MIXTURE:
            rows &= mixture
        if name == _LATENT:
            rows &= latent
        if name == "shared_experts_wait":
            rows &= np.array([case.engine_dp > 1 for case in cases], dtype=bool)
        if name == "gemm_fp8":
            rows &= fp8
        return rows

    present = sorted(set(engines.tolist()))
    base = {name: prior for name, (prior, _) in own.items()}
    if present:
        base = {name: float(np.exp(np.mean([np.log(_shipped(engine, name)) for engine in present]))) for name in own}
    for name, (prior, spread) in own.items():
        key = f"base {name}"
        constants.append(Constant(key, base[name], prior, spread))
        affects[key] = concerned(name)
    for engine in present:
        for name in own if not offline else ():
            key = f"{engine} {name}"
            first = BURST_INTERFERENCE if (engine, name) == ("sglang", "prefill_interference") else 1.0
            constants.append(Constant(key, _shipped(engine, name) / base[name], first, DEVIATION))
            affects[key] = (engines == engine) & concerned(name)
    for name, (prior, spread) in common.items():
        constants.append(Constant(f"all {name}", getattr(ENGINES["vllm"], name).value, prior, spread))
        affects[f"all {name}"] = concerned(name)
    for gpu in sorted(set(gpus.tolist())):
        for name, (prior, spread) in _GPU.items():
            key = f"gpu-{gpu} {name}"
            constants.append(Constant(key, getattr(machine(gpu).accelerator, name).value, prior, spread))
            affects[key] = gpus == gpu
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[case.engine, case.model, case.gpu].append(index)
    where = np.zeros(len(cases), dtype=np.int64)
    for number_, members in enumerate(groups.values()):
        where[members] = number_
    rollouts = [offline_rollout(case) for case in cases] if offline else []

    def predict(values: Mapping[str, float], rows: IntArray) -> FloatArray:
        found = np.zeros(len(rows))
        for number_, (engine, _, gpu) in enumerate(groups):
            here = np.flatnonzero(where[rows] == number_)
            if not len(here):
                continue
            constants_, hardware = setting(engine, gpu, values)
            some = [cases[row] for row in rows[here].tolist()]
            if offline:
                found[here] = offline_seconds(
                    some, [rollouts[row] for row in rows[here].tolist()], hardware, constants_
                )
            else:
                found[here] = serving_seconds(some, hardware, constants_)
        factors = {**RELEASES, **{key.split(" ")[1]: value for key, value in values.items() if key[:8] == "release "}}
        late = np.array([factors.get(cases[row].release, 1.0) for row in rows.tolist()], dtype=np.float64)
        return np.asarray(found * late)

    releases = np.array([case.release for case in cases])
    for release in sorted(set(releases.tolist()) - {""}):
        key = f"release {release}"
        start = RELEASES.get(release, 1.0)
        constants.append(Constant(key, start, 1.0, RELEASE_SPREAD))
        affects[key] = releases == release

    return Problem(
        np.array([case.seconds for case in cases]),
        [case.model for case in cases],
        tuple(constants),
        affects,
        predict,
        rounds=1,
    )


def _shipped(engine: str, name: str) -> float:
    return float(getattr(ENGINES[engine], name).value)


def _chip(gpu: str) -> str:
    """Return the family of GPUs that share their memory efficiencies, by one of them."""
    return _HOPPER[0] if gpu in _HOPPER else gpu


def setting(engine: str, gpu: str, values: Mapping[str, float]) -> tuple[EngineConstants, Machine]:
    """Return engine and machine with these values in place of the shipped ones."""
    known = {field.name for field in fields(EngineConstants)}
    changed: dict[str, object] = {}
    for name in sorted(known):
        if f"base {name}" in values:
            value = values[f"base {name}"] * values.get(f"{engine} {name}", 1.0)
            changed[name] = replace(getattr(ENGINES[engine], name), value=value)
    memory: dict[str, float] = {}
    constants = ENGINES[engine]
    for key, value in values.items():
        owner, name = key.split(" ")
        if owner == "all" and name in known:
            changed[name] = replace(getattr(constants, name), value=value)
        elif owner == f"gpu-{_chip(gpu)}":
            memory[name] = value
    return replace(constants, **changed), with_values(machine(gpu), memory)  # type: ignore[arg-type]
