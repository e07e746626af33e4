"""The price of a stage of user code on host processors: a verifier, a rule-based reward, a sandboxed test run."""

from __future__ import annotations

import numpy as np

from rpegc.cost.table import TimeTerm
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.lengths import Lengths
from rpegc.target import FloatArray

VARIATION = 0.5
"""Coefficient of variation of the seconds per sample. Provenance: assumed; calibrate with the measured stage."""
SLOWEST_OVER_MEAN = 10.0
"""A sample that takes this many times the mean is cut off by its time limit. Provenance: assumed."""
_RESOLUTION = 1000  # Lengths counts whole units: one mean is this many


def price_function(work: StageWork, nodes: int, machine: Machine) -> tuple[TimeTerm, ...]:
    """Return the seconds of a `function` stage over all samples of a step as terms with one row.

    Workers take samples as they become free. `work`: samples * seconds / workers, as if perfectly divisible.
    `rounding`: each worker does whole samples. `slowest_sample`: the longest sample may start last, so the stage
    outlasts the even share by up to its excess over the mean (Graham, Bounds on Multiprocessing Timing Anomalies,
    1969: makespan <= total / m + longest * (1 - 1 / m)). No worker is counted beyond the node's cores.
    """
    workers = max(min(work.workers_per_node, int(machine.host_cores.value)), 1) * nodes
    mean, samples = work.cpu_seconds_per_sample, work.sequences  # of several turns, the last one's call
    even = samples * mean / workers
    rounds = np.ceil(samples / workers) * mean
    spread = Lengths.from_mean(_RESOLUTION, int(_RESOLUTION * SLOWEST_OVER_MEAN), VARIATION)
    slowest = mean * (spread.expected_maximum(samples) / _RESOLUTION - 1.0)
    source = "seconds per sample and workers as the pipeline states them"
    return (
        _term("work", even, "spec", source),
        _term("rounding", float(rounds) - even, "spec", source),
        _term("slowest_sample", slowest, "assumed", f"lognormal seconds per sample, variation {VARIATION}"),
    )


def seconds_after_generation(work: StageWork, completion: FloatArray, nodes: int, machine: Machine) -> float:
    """Return how long a `function` stage that takes samples as they finish outlasts generation.

    `completion`: seconds until each part of the samples is done (a row of `PriceTable.completion`). Workers take what
    has arrived; the last of them to finish may hold the slowest sample.
    """
    workers = max(min(work.workers_per_node, int(machine.host_cores.value)), 1) * nodes
    parts = len(completion)
    each = work.sequences / parts
    free = 0.0
    for arrived in np.asarray(completion, dtype=np.float64).tolist():
        free = max(free, arrived) + each * work.cpu_seconds_per_sample / workers
    slowest = next(term for term in price_function(work, nodes, machine) if term.name == "slowest_sample")
    return free - float(completion[-1]) + float(slowest.seconds[0])


def _term(name: str, seconds: float, provenance: str, source: str) -> TimeTerm:
    return TimeTerm(name, np.array([seconds]), np.zeros(1), provenance, source)
