"""Refit few named constants without the rows that are then predicted: robust least squares on log ratios, with priors.

    minimise  sum_i w_i rho(ln(predicted_i / measured_i)) + sum_j (ln(c_j / prior_j) / spread_j)^2

rho is soft-L1 at 0.06; a row weighs at most what leaves its group (all rows of one model) six rows' weight. Priors
of training and memory are round physical figures (data sheets, kernel benchmarks, halves), chosen with the rows in
view, so left-out errors are slightly optimistic. Kernel and collective curves, with many rows for each constant, start
from what ships, with a prior too weak to matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rpegc.target import BoolArray, FloatArray, IntArray

SOFT_SCALE = 0.06
"""Log residual from which a row counts linearly: about the noise between releases of one configuration."""

GROUP_ROWS = 6.0
STEP = 0.02
LARGEST_MOVE = 1.4
"""Largest change of a constant's logarithm in one round."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant that is refitted: where it starts (the shipped value), prior and its spread (of the logarithm)."""

    name: str
    start: float
    prior: float
    spread: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Rows that share constants.

    `predict(values, rows)` returns predictions of the rows with these indices; constants that `values` does not name
    keep what is shipped. `soft_scale` is the log residual from which a row counts linearly; rows outside of `fitted`
    are predicted only. `affects` says per constant which rows it can change. `rounds` are the linearisations on all
    rows; with one, parts are left out from the shipped constants.
    """

    measured: FloatArray
    groups: Sequence[str]
    constants: tuple[Constant, ...]
    affects: Mapping[str, BoolArray]
    predict: Callable[[Mapping[str, float], IntArray], FloatArray]
    rounds: int = 3
    soft_scale: float = SOFT_SCALE
    fitted: BoolArray | None = None

    @property
    def everything(self) -> IntArray:
        """Indices of all rows."""
        return np.arange(len(self.measured))


@dataclass(frozen=True, slots=True)
class _Line:
    """The residuals (logarithms) near one point, as a linear function of the constants' logarithms."""

    point: FloatArray
    residual: FloatArray
    jacobian: FloatArray


def left_out_predictions(problem: Problem, partitions: Sequence[Sequence[str]]) -> list[FloatArray]:
    """Return, for each partition of the rows, predictions with constants refitted without the row's own part.

    The constants are first fitted to all rows (Gauss-Newton); leaving a part out then moves them by solving the same
    problem without its rows, linearised at that point. What is predicted is the price itself, not the line.
    """
    line = _fitted(problem)
    found = []
    for parts in partitions:
        labels = np.asarray(parts)
        predicted = np.zeros(len(problem.measured))
        for part in sorted(set(parts)):
            inside = labels == part
            point = _solve(problem, line, ~inside)
            predicted[inside] = problem.predict(_values(problem, point), np.flatnonzero(inside))
        found.append(predicted)
    return found


def _values(problem: Problem, point: FloatArray) -> dict[str, float]:
    return {constant.name: float(np.exp(value)) for constant, value in zip(problem.constants, point, strict=True)}


def _fitted(problem: Problem) -> _Line:
    point = np.log([constant.start for constant in problem.constants])
    everything = np.ones(len(problem.measured), dtype=bool)
    for _ in range(problem.rounds - 1):
        point = _solve(problem, _line(problem, point), everything)
    return _line(problem, point)


def _line(problem: Problem, point: FloatArray) -> _Line:
    values = _values(problem, point)
    base = np.log(problem.predict(values, problem.everything))
    jacobian = np.zeros((len(base), len(point)))
    for column, constant in enumerate(problem.constants):
        rows = np.flatnonzero(problem.affects[constant.name])
        moved = {**values, constant.name: values[constant.name] * float(np.exp(STEP))}
        jacobian[rows, column] = (np.log(problem.predict(moved, rows)) - base[rows]) / STEP
    return _Line(point, base - np.log(problem.measured), jacobian)


def _solve(problem: Problem, line: _Line, used: BoolArray) -> FloatArray:
    """Return the constants' logarithms that fit the used rows best, by reweighted least squares on the line."""
    _, group, counts = np.unique(np.asarray(problem.groups), return_inverse=True, return_counts=True)
    if problem.fitted is not None:
        used = used & problem.fitted
    weight = used * np.minimum(1.0, GROUP_ROWS / counts[group])
    prior = np.log([constant.prior for constant in problem.constants])
    stiffness = np.array([1.0 / constant.spread**2 for constant in problem.constants]) * problem.soft_scale**2
    move = np.zeros(len(line.point))
    for _ in range(12):
        residual = line.residual + line.jacobian @ move
        robust = weight / np.sqrt(1.0 + (residual / problem.soft_scale) ** 2)
        normal = line.jacobian.T @ (robust[:, None] * line.jacobian) + np.diag(stiffness)
        gradient = line.jacobian.T @ (robust * line.residual) + stiffness * (line.point - prior)
        move = np.clip(-np.linalg.solve(normal, gradient), -LARGEST_MOVE, LARGEST_MOVE)
    return np.asarray(line.point + move, dtype=np.float64)
