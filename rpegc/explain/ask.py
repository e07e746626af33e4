"""`rpegc explain`: of a compiled folder, or of a pipeline that is compiled for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rpegc.compiler import compile_pipeline
from rpegc.explain.why import explain
from rpegc.explain.why_not import why_not
from rpegc.frontend.load import load_pipeline
from rpegc.plan import Plan, read_plan
from rpegc.reasons import Explanation, Verdict
from rpegc.setting import Options

Progress = Callable[[str], None]


def plan_of(path: Path, options: Options, progress: Progress = lambda _: None) -> Plan:
    """Return the plan of a folder or plan.json, or the best plan of a pipeline file. Raises as both do."""
    if path.is_dir() or path.suffix == ".json":
        return read_plan(path)
    return compile_pipeline(load_pipeline(path), options, progress)


def answer(
    path: Path, conditions: Sequence[str], space: str | None, seed: int, progress: Progress = lambda _: None
) -> tuple[Explanation, tuple[Verdict, ...]]:
    """Return why a plan is as it is, and what becomes of it under each condition.

    Without a `space` conditions are searched in the plan's own.
    """
    plan = plan_of(path, Options(space=space or "default", seed=seed), progress)
    options = Options(space=space or plan.search.space, seed=seed)
    return explain(plan), tuple(why_not(plan, text, options, progress) for text in conditions)
