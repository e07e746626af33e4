"""The families of generation, weight sync and the RL step: which rows, and what is left out of the refit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rpegc.cost.framework import gpu_type
from rpegc.target import BoolArray, FloatArray
from rpegc.validate.generation_fit import generation_problem
from rpegc.validate.generation_rows import offline_cases, serving_cases
from rpegc.validate.refit import Problem, left_out_predictions
from rpegc.validate.rl import Observation, observations, priced, rl_problem
from rpegc.validate.rl_older import older_cases, older_problem
from rpegc.validate.rl_rows import log_runs, total_runs
from rpegc.validate.sync_rows import sync_cases, sync_problem
from rpegc.validate.table import Folder, Skipped

DEFINITIONS: dict[str, tuple[str, str, tuple[float, float]]] = {
    "decode_time": ("decode time per token at fixed concurrency", "a model", (0.09, 0.24)),
    "decode_time_all": ("the same with doubtful rows put back", "a model", (0.11, 0.30)),
    "offline": ("offline generation of a batch", "a model", (0.05, 0.14)),
    "rl_step_h100": ("RL step, NeMo-RL on H100, BF16", "a model", (0.06, 0.18)),
    "rl_step_gb200": ("RL step, NeMo-RL on GB200", "a model", (0.12, 0.26)),
    "rl_step_logs": ("RL step of logs with component times", "a source", (0.11, 0.22)),
    "rl_generation": ("generation of those logs", "a source", (0.18, 0.45)),
    "rl_passes": ("old log-probs, reference, actor update of those logs", "a source", (0.09, 0.30)),
    "rl_step_class": ("RL step of all these", "a framework class", (0.20, 0.45)),
    "rl_step_gpu": ("RL step of all these", "a GPU type", (0.20, 0.45)),
    "rl_older": ("OpenRLHF, DeepSpeed-Chat and ReaL", "a model", (0.20, 0.40)),
    "weight_sync": ("weight sync", "a model", (0.25, 0.60)),
}
"""Title, what is left out together, and bar: (median, p90) of the absolute error."""

_PASSES = ("old log-probs", "reference", "actor")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one family, ready for a `FamilyResult`."""

    family: str
    row_ids: tuple[str, ...]
    sources: tuple[str, ...]
    measured: FloatArray
    predicted: FloatArray
    left_out: FloatArray
    parts: tuple[str, ...]
    skipped: tuple[Skipped, ...]


def evaluate_rl(folder: Folder, wanted: Sequence[str]) -> list[Rows]:
    """Return the rows of the wanted families of this file."""
    found: list[Rows] = []
    makers: tuple[tuple[tuple[str, ...], Callable[[Folder], list[Rows]]], ...] = (
        (("decode_time", "decode_time_all"), _serving),
        (("offline",), _offline),
        (tuple(name for name in DEFINITIONS if name.startswith("rl_") and name != "rl_older"), _steps),
        (("rl_older",), _older),
        (("weight_sync",), _sync),
    )
    for names, make in makers:
        if any(name in wanted for name in names):
            made = make(folder) if folder.path else _packaged(make)
            found += [rows for rows in made if rows.family in wanted]
    return found


@cache
def _packaged(make: Callable[[Folder], list[Rows]]) -> list[Rows]:
    """Return what a maker finds in the package's own rows, which do not change."""
    return make(Folder())


def _left_out(problem: Problem, partitions: Sequence[Sequence[str]]) -> list[FloatArray]:
    if not len(problem.measured):
        return [np.zeros(0) for _ in partitions]
    return left_out_predictions(problem, partitions)


def _rows(
    family: str, problem: Problem, ids: Sequence[tuple[str, str]], parts: Sequence[str], skipped: Sequence[Skipped]
) -> Rows:
    (left_out,) = _left_out(problem, [parts])
    predicted = problem.predict({}, problem.everything)
    row_ids, sources = tuple(one for one, _ in ids), tuple(source for _, source in ids)
    return Rows(family, row_ids, sources, problem.measured, predicted, left_out, tuple(parts), tuple(skipped))


def _serving(folder: Folder) -> list[Rows]:
    cases, skipped = serving_cases(folder)
    sure = [case for case in cases if not case.doubtful]
    doubtful = [Skipped(case.row_id, case.doubtful) for case in cases if case.doubtful]
    found = []
    for family, some, left in (("decode_time", sure, [*skipped, *doubtful]), ("decode_time_all", cases, [])):
        ids = [(case.row_id, case.source) for case in some]
        found.append(_rows(family, generation_problem(some, False), ids, [case.model for case in some], left))
    return found


def _offline(folder: Folder) -> list[Rows]:
    cases, skipped = offline_cases(folder)
    ids = [(case.row_id, case.source) for case in cases]
    return [_rows("offline", generation_problem(cases, True), ids, [case.model for case in cases], skipped)]


def _older(folder: Folder) -> list[Rows]:
    cases, skipped = older_cases(folder)
    ids = [(case.row_id, case.source) for case in cases]
    return [_rows("rl_older", older_problem(cases), ids, [case.model for case in cases], skipped)]


def _sync(folder: Folder) -> list[Rows]:
    cases, skipped = sync_cases(folder)
    ids = [(case.row_id, case.source) for case in cases]
    return [_rows("weight_sync", sync_problem(cases), ids, [case.model for case in cases], skipped)]


def _steps(folder: Folder) -> list[Rows]:
    logs, log_skipped = log_runs(folder)
    totals, total_skipped = total_runs(folder)
    runs, unpriced = priced([*logs, *totals])
    rows = observations(runs)
    problem = rl_problem(rows)
    predicted = problem.predict({}, problem.everything)
    by = {
        "a model": [row.priced.run.model for row in rows],
        "a source": [row.priced.run.origin for row in rows],
        "a framework class": [row.priced.run.group for row in rows],
        "a GPU type": [row.priced.run.gpu for row in rows],
    }
    left_out = dict(zip(by, _left_out(problem, list(by.values())), strict=True))
    skipped = {"rl_step_logs": [*log_skipped, *unpriced], "rl_step_h100": total_skipped}
    found = []
    for family, wanted in _slices(rows).items():
        parts = by[DEFINITIONS[family][1]]
        at = np.flatnonzero(wanted).tolist()
        found.append(
            Rows(
                family,
                tuple(f"{rows[row].priced.run.row_id} {rows[row].part}" for row in at),
                tuple(rows[row].priced.run.source for row in at),
                problem.measured[at],
                predicted[at],
                left_out[DEFINITIONS[family][1]][at],
                tuple(parts[row] for row in at),
                tuple(skipped.get(family, ())),
            )
        )
    return found


def _slices(rows: list[Observation]) -> dict[str, BoolArray]:
    step = np.array([row.part == "step" for row in rows], dtype=bool)
    total = np.array([len(row.priced.run.measured) == 1 for row in rows], dtype=bool)
    blackwell = np.array([gpu_type(row.priced.run.machine.accelerator.name) == "GB200" for row in rows], dtype=bool)
    fp8 = np.array(["fp8" in row.priced.run.train_flags for row in rows], dtype=bool)
    return {
        "rl_step_h100": step & total & ~blackwell & ~fp8,
        "rl_step_gb200": step & total & blackwell,
        "rl_step_logs": step & ~total,
        "rl_generation": np.array([row.part == "generation" for row in rows], dtype=bool),
        "rl_passes": np.array([row.part in _PASSES for row in rows], dtype=bool),
        "rl_step_class": step,
        "rl_step_gpu": step,
    }
