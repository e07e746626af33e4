"""A search that was killed goes on where it stopped: every verdict of a solver is kept in a file, by its problem.

Searches are deterministic, so a verdict found once is found again: the file is a cache, one JSON object a line. It is
never executed. The first line says what it is, and no other file is ever added to; a line that is torn or does not have
the digest it states is passed over.
"""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from rpegc.errors import InputError
from rpegc.search.choose import Solver
from rpegc.search.solver.problem import Choice, GpuStage, Limit, Problem, Solution, Status, SyncStage, Template

HEADER = '{"format": "rpegc.checkpoint/1"}'
"""First line of every checkpoint."""


def remembering(solve: Solver, path: Path) -> Solver:
    """Return a solver that looks a problem up in a file first, and adds what it solved. Raises InputError as `load`.

    Only verdicts of searches that ran to their end are kept: one that was interrupted runs again.
    """
    known = load(path)

    def remembered(problem: Problem, limit: Limit, cutoff: int | None) -> Solution:
        key = digest(problem, limit, cutoff)
        if key not in known:
            known[key] = solve(problem, limit, cutoff)
            if known[key].status is not Status.INTERRUPTED:
                _append(path, key, known[key])
        return known[key]

    return remembered


def load(path: Path) -> dict[str, Solution]:
    """Return the verdicts in a file, by problem; none if there is no file. Raises InputError if it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a checkpoint ({error})") from None
    if lines and lines[0] != HEADER:
        raise InputError(f"{path}: is no checkpoint of rpegc; it is left alone", hint="name a file that does not exist")
    known: dict[str, Solution] = {}
    for line in lines[1:]:
        stated, _, text = line.partition(" ")
        if stated == _digest(text):
            document = json.loads(text)
            known[str(document["problem"])] = _solution(document["solution"])
    return known


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def digest(problem: Problem, limit: Limit, cutoff: int | None) -> str:
    """Return a name for a question to a solver: equal questions have equal names."""
    named = hashlib.sha256(repr((limit, cutoff, problem.cluster, problem.mesh_classes, problem.edges)).encode())
    named.update(repr((problem.ladder, problem.device_capacity, problem.host_capacity)).encode())
    named.update(repr((problem.sharing, problem.ties)).encode())
    for stage in problem.stages:
        named.update(stage.name.encode())
        if isinstance(stage, GpuStage):
            for m, cell in sorted(stage.cells.items()):
                named.update(repr((m, cell.rows)).encode())
                for column in cell.__slots__:
                    named.update(getattr(cell, column).tobytes())
        elif isinstance(stage, SyncStage):
            named.update(repr((stage.source, stage.target, stage.source_signatures, stage.target_signatures)).encode())
            named.update(stage.across.tobytes() + stage.same.tobytes())
        else:
            named.update(repr(stage).encode())
    return named.hexdigest()


def _append(path: Path, key: str, solution: Solution) -> None:
    line = json.dumps({"problem": key, "solution": _document(solution)}, sort_keys=True)
    try:
        head = "" if path.exists() and path.stat().st_size else HEADER
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(f"{head}\n{_digest(line)} {line}\n")  # a line that a kill tore ends here
    except OSError as error:
        raise InputError(f"{path}: the checkpoint cannot be written ({error.strerror})") from None


def _document(solution: Solution) -> dict[str, Any]:
    choice = solution.choice
    return {
        "choice": None
        if choice is None
        else {
            "parents": list(choice.template.parents),
            "homes": {name: list(nodes) for name, nodes in choice.template.homes.items()},
            "mesh_classes": list(choice.mesh_classes),
            "along_gpus": list(choice.along_gpus),
            "nodes": dict(choice.nodes),
            "layouts": dict(choice.layouts),
            "milliseconds": dict(choice.milliseconds),
            "start_ms": dict(choice.start_ms),
        },
        "period": None if solution.period is None else str(solution.period),
        "bound": solution.bound,
        "status": solution.status.value,
        "limit_hit": list(solution.limit_hit),
        "statistics": dict(solution.statistics),
    }


def _solution(document: dict[str, Any]) -> Solution:
    found = document["choice"]
    choice = None
    if found is not None:
        homes = {name: tuple(nodes) for name, nodes in found["homes"].items()}
        choice = Choice(
            Template(tuple(found["parents"]), homes),
            tuple(found["mesh_classes"]),
            tuple(found["along_gpus"]),
            *({str(k): int(v) for k, v in found[n].items()} for n in ("nodes", "layouts", "milliseconds", "start_ms")),
        )
    return Solution(
        choice,
        None if document["period"] is None else Fraction(document["period"]),
        int(document["bound"]),
        Status(document["status"]),
        tuple(document["limit_hit"]),
        document["statistics"],
    )
