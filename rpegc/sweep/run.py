"""Compile the points of a sweep, in this process or in several, in one fixed order; mark the Pareto front."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from rpegc.compiler import fitting_plan
from rpegc.errors import InputError, MissingPiece, NothingFits
from rpegc.frontend.load import load_pipeline, pipeline_from_text
from rpegc.plan import Plan
from rpegc.reasons import Sweep, SweepRow
from rpegc.setting import Options, setting_of
from rpegc.sweep.points import WORKLOAD_AXES, Point, front_axes, points

Done = Callable[[int, int], None]
"""Called with the points done and all points."""


def sweep(
    path: Path,
    axes: Mapping[str, tuple[str, ...]],
    options: Options,
    workers: int = 1,
    pareto: bool = False,
    done: Done = lambda _, __: None,
) -> Sweep:
    """Compile every point of a pipeline's axes; with `pareto`, axes not given run up to what the pipeline has.

    The rows do not depend on `workers`. After Ctrl-C the points left are rows with status "interrupted".
    Raises InputError if the pipeline or an axis is wrong; a point that is refused is a row.
    """
    pipeline = load_pipeline(path)
    chosen = front_axes(pipeline, axes) if pareto else dict(axes)
    todo = tuple(points(path, chosen))
    rows: list[SweepRow] = []
    done(0, len(todo))
    try:
        for row in _rows(todo, path, options, workers):
            rows.append(row)
            done(len(rows), len(todo))
            if row.status == "interrupted":
                break
    except KeyboardInterrupt:
        pass
    rows += [SweepRow(point.values, "interrupted") for point in todo[len(rows) :]]
    ordered = {name: chosen[name] for name in todo[0].values} if todo else dict(chosen)
    return Sweep(pipeline.name, ordered, _marked(rows))


def _rows(todo: Sequence[Point], path: Path, options: Options, workers: int) -> Iterator[SweepRow]:
    """Yield the rows in the order of the points."""
    compile_point = partial(row_of, name=str(path), folder=path.parent, options=options)
    if workers == 1 or len(todo) < 2:
        yield from map(compile_point, todo)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context) as pool:
        try:
            yield from pool.map(compile_point, todo)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise


def row_of(point: Point, name: str, folder: Path, options: Options) -> SweepRow:
    """Compile one point; what is wrong with it becomes the row's reason."""
    try:
        pipeline = pipeline_from_text(point.text, name, folder)
        plan = fitting_plan(setting_of(pipeline, options))
    except (InputError, MissingPiece) as problem:
        return SweepRow(point.values, "refused", getattr(problem, "message", str(problem)))
    except NothingFits as problem:
        return SweepRow(point.values, "does not fit", problem.term or problem.message)
    return _row(point, plan)


def _row(point: Point, plan: Plan) -> SweepRow:
    return SweepRow(
        point.values,
        plan.search.status,
        period_s=plan.period_s,
        interval_s=plan.period_interval_s,
        lower_bound_s=plan.lower_bound_s,
        gpu_hours=plan.gpu_hours_per_step,
        usd=plan.usd_per_step,
        tokens_per_s_per_gpu=plan.tokens_per_s_per_gpu,
        mfu=plan.mfu,
        gpus=plan.devices.gpus,
        idle_gpus=plan.devices.idle_gpus,
        staleness=plan.staleness.bound,
        mode=plan.graph.mode,
    )


def _marked(rows: Sequence[SweepRow]) -> tuple[SweepRow, ...]:
    """Mark the rows that no other row of the same workload dominates; of equal plans the first."""
    marked = []
    for place, row in enumerate(rows):
        rivals = [
            (other.costs, number)
            for number, other in enumerate(rows)
            if number != place and _workload(other) == _workload(row) and other.costs is not None
        ]
        costs = row.costs
        beaten = costs is None or any(_dominates(rival, costs, number < place) for rival, number in rivals)
        marked.append(replace(row, front=not beaten))
    return tuple(marked)


def _workload(row: SweepRow) -> tuple[str, ...]:
    return tuple(row.values.get(axis, "") for axis in WORKLOAD_AXES)


def _dominates(one: tuple[float, ...] | None, other: tuple[float, ...], earlier: bool) -> bool:
    """Whether costs are nowhere larger than others and smaller in one; equal costs count for the earlier row."""
    if one is None or any(a > b for a, b in zip(one, other, strict=True)):
        return False
    return one != other or earlier
