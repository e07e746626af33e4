"""The RL problem: a few constants by framework class and GPU type, shrunk towards what all have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rpegc.cost import rl_engines, rl_passes
from rpegc.cost.framework import gpu_type
from rpegc.cost.transitions import SYNC_CONSTANTS
from rpegc.ir.graph import Op
from rpegc.target import FloatArray, IntArray
from rpegc.validate.refit import Constant, Problem
from rpegc.validate.rl_runs import Generation, Pass, Run, Sync, generation_of, pass_of, sync_of
from rpegc.validate.table import Skipped, SkipRow

SOFT_SCALE = 0.25
"""Log residual from which a row counts linearly: engine modes and tails that logs do not state make as much."""

GROUP_SPREAD = 0.25
"""How far a framework class or a GPU type may lie from the common factor (of the logarithm)."""

FOREIGN_SPREAD = 0.6
"""The same of generation on GPUs for which engines were not first written."""

RELEASE_SPREAD = 0.1
OLD_RELEASES = {"v0.4": 1.03}
"""Releases of NeMo-RL older than those that define the constants; the same recipes take 5 to 17 % longer there."""

_FOREIGN = ("MI300X", "C550")
_REFERENCE = ("H100", "H800")  # these define the platform factors

COMMON: Mapping[str, tuple[float, float]] = {
    "generation": (1.15, 0.15),
    "training": (1.1, 0.1),
    "forward": (1.1, 0.1),
    "mixture": (1.9, 0.2),
    "foreign": (1.4, 0.3),
    "asynchronous": (0.9, 0.1),
    "eager": (300e-6, 0.5),
    "old": (64e-6, 0.7),
    "lora": (1400e-6, 0.5),
    "across": (100e-6, 0.5),
    "micro_batch_fsdp": (0.9e-3, 0.5),
    "micro_batch_megatron": (0.3e-3, 0.5),
    "micro_batch_lora": (2.6e-3, 0.5),
    "onload": (1.4, 0.3),
    "verl_sync": (1.6, 0.3),
    "verl_bandwidth": (15e9, 0.3),
    "same_bandwidth": (22e9, 0.4),
    "across_bandwidth": (41e9, 0.4),
    "same_fixed": (15.0, 0.3),
    "across_fixed": (3.0, 0.3),
}
"""Prior and spread of the constants that all rows share; seconds, B/s, factors."""

_PARTS = ("generation", "training", "forward")
_VERL_FIXED_S = 0.5
REFIT_FIXED_S = 1.0


@dataclass(frozen=True, slots=True)
class Priced:
    """A run and what its stages cost before anything that is fitted."""

    run: Run
    generation: Generation
    forward: Pass
    reference: Pass
    values: Pass | None
    critic: Pass | None
    actor: Pass
    sync: Sync


def priced(runs: list[Run]) -> tuple[list[Priced], list[Skipped]]:
    """Price the stages of runs."""
    found, skipped = [], []
    for run in runs:
        try:
            critic = "critic" in run.measured
            found.append(
                Priced(
                    run,
                    generation_of(run),
                    pass_of(run, Op.FORWARD),
                    pass_of(run, Op.FORWARD, trained=run.framework != "verl"),
                    pass_of(run, Op.FORWARD, head="scalar") if critic else None,
                    pass_of(run, Op.TRAIN, head="scalar") if critic else None,
                    pass_of(run, Op.TRAIN),
                    sync_of(run),
                )
            )
        except SkipRow as reason:
            skipped.append(Skipped(run.row_id, str(reason)))
    return found, skipped


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured part of a run."""

    priced: Priced
    part: str
    seconds: float

    @property
    def is_total(self) -> bool:
        """Whether this is a step that the run's own parts already say."""
        return self.part == "step" and len(self.priced.run.measured) > 1


def observations(runs: list[Priced]) -> list[Observation]:
    """Return every measured part of the runs, in order."""
    return [Observation(one, part, seconds) for one in runs for part, seconds in one.run.measured.items()]


def seconds_of(one: Priced, part: str, value: Mapping[str, float]) -> float:
    """Return the seconds of a part of a run under all constants (those of `shipped_constants`)."""
    run = one.run
    platform = gpu_type(run.machine.accelerator.name)

    def factor(kind: str) -> float:
        own = value.get(f"{kind} class {run.group}", 1.0) * value.get(f"{kind} gpu {platform}", 1.0)
        if kind == "generation" and platform in _FOREIGN:
            own *= value["common foreign"]
        return value[f"common {kind}"] * own

    def passing(cost: Pass, kind: str) -> float:
        common = factor(kind) * (value["common mixture"] if run.architecture.experts else 1.0)
        each = value["common micro_batch_lora" if run.adapters and cost is not one.reference else _micro_batch(run)]
        onload = max(cost.copies, cost.transfers * value["common onload"])
        return common * cost.scaled + cost.plain + each * cost.per_micro_batch + onload

    def generation() -> float:
        g = one.generation
        own = factor("generation") * (value["common asynchronous"] if "async" in run.engine_flags else 1.0) * g.own
        added = value["common eager"] * g.eager + value["common lora"] * g.lora
        return own + added + value["common across"] * g.across + value["common old"] * g.old

    def sync() -> float:
        if run.framework == "verl":
            fixed, bandwidth = value["common verl_sync"], value["common verl_bandwidth"]
        else:
            fixed = REFIT_FIXED_S
            bandwidth = value["common same_bandwidth" if run.colocated else "common across_bandwidth"]
        return fixed + max(one.sync.bytes / bandwidth, one.sync.gather) + one.sync.rest

    if part == "engine":
        return generation()
    if part == "reshard":
        return sync()
    if part == "generation":
        return generation() + (sync() if run.framework == "verl" else 0.0)
    if part == "old log-probs":
        return passing(one.forward, "forward") * (2.0 if run.framework == "nemo-rl" else 1.0)
    if part == "reference":
        return passing(one.reference, "forward")
    if part == "actor":
        return passing(one.actor, "training")
    if part == "values" and one.values is not None:
        return passing(one.values, "forward")
    if part == "critic" and one.critic is not None:
        return passing(one.critic, "training")
    assert part == "step", part
    release = value.get(f"release {run.release}", 1.0)
    if len(run.measured) > 1:
        inside = [name for name in run.measured if name not in ("engine", "reshard", "step")]
        parts = sum(seconds_of(one, name, value) for name in inside)
        if run.framework == "nemo-rl":
            return parts + sync() + value["common same_fixed"]
        return parts + _VERL_FIXED_S
    training = 2.0 * passing(one.forward, "forward") + passing(one.actor, "training")
    if run.asynchronous:
        return release * (max(generation(), training) + sync() + value["common across_fixed"])
    total = generation() + training + sync() + value["common same_fixed" if run.colocated else "common across_fixed"]
    return release * total


def shipped_constants() -> dict[str, float]:
    """Return what ships, under the names of the problem."""
    sync, verl = SYNC_CONSTANTS["nemo-rl"], SYNC_CONSTANTS["verl"]
    common = {
        "generation": rl_engines.UNKNOWN_FRAMEWORK,
        "training": rl_passes.UNKNOWN_TRAINING,
        "forward": rl_passes.UNKNOWN_FORWARD,
        "mixture": rl_passes.MIXTURE,
        "foreign": rl_engines.FOREIGN_PLATFORM,
        "asynchronous": rl_engines.ASYNC_FACTOR,
        "eager": rl_engines.EAGER_LAYER_S,
        "old": rl_engines.OLD_ENGINE_SEQUENCE_S,
        "lora": rl_engines.LORA_LAYER_S,
        "across": rl_engines.ACROSS_NODES_LAYER_S,
        "micro_batch_fsdp": rl_passes.MICRO_BATCH_FSDP_S,
        "micro_batch_megatron": rl_passes.MICRO_BATCH_MEGATRON_S,
        "micro_batch_lora": rl_passes.MICRO_BATCH_LORA_S,
        "onload": rl_passes.ONLOAD_S,
        "verl_sync": verl.same_fixed_s,
        "verl_bandwidth": verl.same_bandwidth,
        "same_bandwidth": sync.same_bandwidth,
        "across_bandwidth": sync.across_bandwidth,
    }
    found = {f"common {name}": figure.value for name, figure in common.items()}
    found["common same_fixed"] = sync.same_fixed_s.value - REFIT_FIXED_S
    found["common across_fixed"] = sync.across_fixed_s.value - REFIT_FIXED_S
    factors = {
        "generation": (rl_engines.FRAMEWORK_FACTORS, rl_engines.PLATFORM_FACTORS, rl_engines.UNKNOWN_FRAMEWORK),
        "training": (rl_passes.TRAINING_FACTORS, rl_passes.PLATFORMS, rl_passes.UNKNOWN_TRAINING),
        "forward": (rl_passes.FORWARD_FACTORS, rl_passes.PLATFORMS, rl_passes.UNKNOWN_FORWARD),
    }
    for kind, (classes, platforms, mean) in factors.items():
        for (framework, engine), figure in classes.items():
            found[f"{kind} class {framework} {engine}"] = figure.value / mean.value
        for platform, figure in platforms.items():
            foreign = rl_engines.FOREIGN_PLATFORM.value if kind == "generation" and platform in _FOREIGN else 1.0
            found[f"{kind} gpu {platform}"] = figure.value / foreign
    return {**found, **{f"release {name}": factor for name, factor in OLD_RELEASES.items()}}


def _micro_batch(run: Run) -> str:
    return f"common micro_batch_{run.engine_class}"


def rl_problem(rows: list[Observation]) -> Problem:
    """Return the problem of all RL rows; steps whose parts are printed are predicted, not fitted."""
    shipped = shipped_constants()
    constants = [Constant(f"common {name}", shipped[f"common {name}"], *prior) for name, prior in COMMON.items()]
    groups = sorted({row.priced.run.group for row in rows})
    chips = sorted({gpu_type(row.priced.run.machine.accelerator.name) for row in rows} - set(_REFERENCE))
    for kind in _PARTS:
        for group in groups:
            name = f"{kind} class {group}"
            constants.append(
                Constant(name, shipped.get(name, 1.0), 1.0, GROUP_SPREAD / (2 if kind == "generation" else 1))
            )
        for chip in chips if kind != "forward" else ():
            name = f"{kind} gpu {chip}"
            spread = FOREIGN_SPREAD if kind == "generation" and chip in _FOREIGN else GROUP_SPREAD
            constants.append(Constant(name, shipped.get(name, 1.0), 1.0, spread))
    for release in OLD_RELEASES:
        constants.append(Constant(f"release {release}", shipped.get(f"release {release}", 1.0), 1.0, RELEASE_SPREAD))
    every = np.ones(len(rows), dtype=bool)

    def predict(values: Mapping[str, float], at: IntArray) -> FloatArray:
        known = {**shipped, **values}
        for name, number in list(known.items()):
            if name.startswith("training gpu "):
                known["forward" + name[8:]] = number
        return np.array([seconds_of(rows[row].priced, rows[row].part, known) for row in at.tolist()])

    return Problem(
        np.array([row.seconds for row in rows]),
        [f"{row.priced.run.origin} {row.priced.run.model} {row.part}" for row in rows],
        tuple(constants),
        {constant.name: every for constant in constants},
        predict,
        rounds=1,
        soft_scale=SOFT_SCALE,
        fitted=np.array([not row.is_total for row in rows], dtype=bool),
    )
