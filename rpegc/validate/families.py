"""The families of prices, each with its bar: errors of the shipped constants, and with the predicted rows left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from rpegc.target import BoolArray, FloatArray
from rpegc.validate.kernels import Sweep, attention_sweep, collective_sweep, gemm_sweep
from rpegc.validate.refit import Problem, left_out_predictions
from rpegc.validate.rl_families import DEFINITIONS, evaluate_rl
from rpegc.validate.table import Folder, Skipped
from rpegc.validate.training import memory_problem, time_problem
from rpegc.validate.training_rows import Case, read_cases
from rpegc.validate.verdicts import verdicts

BAND = (0.1, 0.9)
"""Quantiles of the residuals between which an 80 % interval lies."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a family holds, what is left out together, and its bar: (median, p90) of the absolute error, or none.

    `worst` families are judged by mean and maximum, as the published comparison they answer to; `verdict` families by
    the shares of wrong verdicts on what fits and on what does not (the bar is one minus the wanted recall).
    """

    title: str
    parts: str
    bar: tuple[float, float] | None
    worst: bool = False
    verdict: bool = False


FAMILIES: Mapping[str, Definition] = MappingProxyType(
    {
        "gemm": Definition("matrix products, m >= 1024", "a fifth of the (n, k)", (0.045, 0.14)),
        "attention": Definition("attention forward, over 1e10 FLOP", "a fifth of the head counts", (0.06, 0.20)),
        "collectives": Definition("collectives from 64 KiB", "a third of the sizes", (0.08, 0.25)),
        "training_dense": Definition("training step, dense", "a model", (0.045, 0.15)),
        "training_moe": Definition("training step, MoE", "a model", (0.10, 0.28)),
        "training_source": Definition("training step, all but GH200", "a source", (0.08, 0.24)),
        "training_gh200": Definition("training step on GH200", "a model", None),
        "calculon_points": Definition("Megatron points of calculon (mean, max)", "a model", (0.035, 0.08), worst=True),
        "peak_memory": Definition("peak device memory", "a model", (0.05, 0.15)),
        **{name: Definition(*stated) for name, stated in DEFINITIONS.items()},
        "memory_verdicts": Definition(
            "does it fit (wrong of what fits, of what does not)", "nothing", (0.10, 0.10), verdict=True
        ),
    }
)


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """Predictions of one family: with shipped constants, and with constants refitted without the row's part."""

    family: str
    row_ids: tuple[str, ...]
    sources: tuple[str, ...]
    measured: FloatArray
    predicted: FloatArray
    left_out: FloatArray
    parts: tuple[str, ...]
    skipped: tuple[Skipped, ...]

    @property
    def definition(self) -> Definition:
        """Title, parts and bar."""
        return FAMILIES[self.family]

    def figures(self, predictions: FloatArray) -> tuple[float, float]:
        """Return median and 90th percentile of the absolute error (mean and maximum, if the family asks so)."""
        error = np.abs(predictions / self.measured - 1.0)
        if self.definition.verdict:
            sides = (error[self.measured < 1.0], error[self.measured > 1.0])
            fits, overflows = (float(np.mean(side > 0.0)) if len(side) else 0.0 for side in sides)
            return fits, overflows
        if self.definition.worst:
            return float(np.mean(error)), float(np.max(error))
        return float(np.median(error)), float(np.quantile(error, 0.9))

    @property
    def bias(self) -> float:
        """Median error of the shipped constants, with its sign."""
        return float(np.median(self.predicted / self.measured - 1.0))

    @property
    def holds(self) -> bool | None:
        """Whether both columns keep the bar; None without a bar."""
        bar = self.definition.bar
        if bar is None:
            return None
        columns = (self.figures(self.predicted), self.figures(self.left_out))
        return all(figure <= limit for column in columns for figure, limit in zip(column, bar, strict=True))

    def band(self, without: str | None = None) -> tuple[float, float]:
        """Return the multipliers of an 80 % interval: residual quantiles of left-out rows, of the other parts only."""
        if self.definition.verdict:
            return 1.0, 1.0
        used = np.array([part != without for part in self.parts])
        ratio = (self.measured / self.left_out)[used if used.any() else ~used]
        low, high = np.quantile(ratio, BAND)
        return float(low), float(high)

    @property
    def coverage(self) -> float:
        """Share of the left-out rows inside an 80 % interval that rests on the other parts' residuals.

        Of verdicts: the share that is right.
        """
        bands = {part: self.band(part) for part in set(self.parts)}
        low, high = (np.array([bands[part][side] for part in self.parts]) * self.left_out for side in (0, 1))
        return float(np.mean((low <= self.measured) & (self.measured <= high)))


def evaluate(folder: Folder, wanted: Sequence[str]) -> list[FamilyResult]:
    """Return the results of the wanted families that have rows or skipped ones, in the order of `FAMILIES`."""
    results: list[FamilyResult] = []
    sweeps: dict[str, Callable[[Folder], Sweep]] = {
        "gemm": gemm_sweep,
        "attention": attention_sweep,
        "collectives": collective_sweep,
    }
    for family, read in sweeps.items():
        if family in wanted:
            sweep = read(folder)
            left_out = _left_out(sweep.problem, [sweep.parts])[0]
            results.append(_result(family, sweep, left_out))
    if any(family.startswith(("training", "calculon")) for family in wanted):
        results += _training(folder, wanted)
    if "peak_memory" in wanted:
        results.append(_memory(folder))
    for rows in evaluate_rl(folder, wanted):
        results.append(FamilyResult(*(getattr(rows, name) for name in FamilyResult.__slots__)))
    if "memory_verdicts" in wanted:
        results.append(_verdicts(folder))
    order = list(FAMILIES)
    found = [result for result in results if result.row_ids or result.skipped]
    return sorted(found, key=lambda result: order.index(result.family))


def _left_out(problem: Problem, partitions: Sequence[Sequence[str]]) -> list[FloatArray]:
    if not len(problem.measured):
        return [np.zeros(0) for _ in partitions]
    return left_out_predictions(problem, partitions)


def _result(family: str, sweep: Sweep, left_out: FloatArray) -> FamilyResult:
    problem = sweep.problem
    predicted = problem.predict({}, problem.everything)
    return FamilyResult(
        family, sweep.row_ids, sweep.sources, problem.measured, predicted, left_out, sweep.parts, sweep.skipped
    )


def _training(folder: Folder, wanted: Sequence[str]) -> list[FamilyResult]:
    cases, skipped = read_cases(folder)
    problem = time_problem(cases)
    predicted = problem.predict({}, problem.everything)
    models = [case.model for case in cases]
    origins = [case.origin for case in cases]
    by_model, by_source = _left_out(problem, [models, origins])
    grace = np.array([case.gpu.startswith("gh200") for case in cases], dtype=bool)
    mixture = np.array([case.mixture for case in cases], dtype=bool)
    calculon = np.array(["calculon" in case.source for case in cases], dtype=bool)
    slices: dict[str, tuple[BoolArray, FloatArray, list[str]]] = {
        "training_dense": (~grace & ~mixture, by_model, models),
        "training_moe": (~grace & mixture, by_model, models),
        "training_source": (~grace, by_source, origins),
        "training_gh200": (grace, by_model, models),
        "calculon_points": (calculon, by_model, models),
    }
    kinds: dict[str, tuple[str, ...]] = {
        "training_dense": ("dense",),
        "training_moe": ("moe",),
        "training_gh200": ("gh200",),
    }
    kinds["training_source"] = ("dense", "moe")
    left = {family: [row for row in skipped if row.kind in kinds.get(family, ())] for family in slices}
    return [
        _slice(family, rows, cases, problem, predicted, left_out, parts, left[family])
        for family, (rows, left_out, parts) in slices.items()
        if family in wanted
    ]


def _memory(folder: Folder) -> FamilyResult:
    cases, skipped = read_cases(folder, memory=True)
    problem = memory_problem(cases)
    models = [case.model for case in cases]
    left_out = _left_out(problem, [models])[0]
    everything = np.ones(len(cases), dtype=bool)
    predicted = problem.predict({}, problem.everything)
    return _slice("peak_memory", everything, cases, problem, predicted, left_out, models, skipped)


def _verdicts(folder: Folder) -> FamilyResult:
    """Nothing is refitted: verdicts follow from the constants that the other families left out rows of."""
    found = verdicts(folder)
    said = np.array(found.said, dtype=np.float64)
    known = np.array(found.known, dtype=np.float64)
    ids, sources, parts = tuple(found.row_ids), tuple(found.sources), tuple(found.parts)
    return FamilyResult("memory_verdicts", ids, sources, known, said, said, parts, tuple(found.skipped))


def _slice(
    family: str,
    rows: BoolArray,
    cases: list[Case],
    problem: Problem,
    predicted: FloatArray,
    left_out: FloatArray,
    parts: list[str],
    skipped: list[Skipped],
) -> FamilyResult:
    at = np.flatnonzero(rows).tolist()
    return FamilyResult(
        family,
        tuple(cases[row].row_id for row in at),
        tuple(cases[row].source for row in at),
        problem.measured[at],
        predicted[at],
        left_out[at],
        tuple(parts[row] for row in at),
        tuple(skipped),
    )
