"""One integer program over boxes: data, variables, constraints, objective, solve."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ortools.sat.python import cp_model

from rpegc.search.solver.boxes import Box
from rpegc.search.solver.constraints import CONSTRAINTS
from rpegc.search.solver.objective import constrain_goals, objective
from rpegc.search.solver.variables import Data, Meshes, Variables, declare


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A plan over boxes: meshes, mesh class and box of every GPU stage, starts and period in milliseconds."""

    meshes: Meshes
    boxes: dict[str, tuple[int, Box]]
    start_ms: dict[str, int]
    period: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What one integer program said: a plan if it found one, a lower bound of its objective, and how hard it was.

    `infeasible` is a proof; the bound is then one more than the cutoff. Without a proof and without a plan, the
    deterministic limit ended the search.
    """

    plan: Relaxed | None
    bound: int
    infeasible: bool
    deterministic_time: float
    variables: int
    constraints: int


def solve_master(data: Data, deterministic_time: float, gap: float, memory_mb: int, seed: int) -> Answer:
    """Build and solve the integer program of `data`; stops early at a relative `gap` or at the deterministic limit."""
    # Variables
    v = declare(data)
    if not all(v.options.values()):
        return Answer(None, data.cutoff + 1, True, 0.0, 0, 0)

    # Constraints
    for constrain in (*CONSTRAINTS, constrain_goals):
        constrain(data, v)

    # Objective
    v.model.minimize(objective(data, v))

    # Solve: if the first way finds neither a plan nor a proof in its time, the other gets as much again
    ways = (0, 2) if data.fixed is None else (1, 2)
    spent = 0.0
    for level in ways:
        solver = _solver(level, deterministic_time, gap, memory_mb, seed)
        status = _interruptible(solver, v.model)
        spent += solver.response_proto.deterministic_time
        if status != cp_model.UNKNOWN:
            break
    infeasible = status == cp_model.INFEASIBLE
    return Answer(
        plan=_plan(data, v, solver) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None,
        bound=data.cutoff + 1 if infeasible else round(solver.best_objective_bound),
        infeasible=infeasible,
        deterministic_time=spent,
        variables=len(v.model.proto.variables),
        constraints=len(v.model.proto.constraints),
    )


def _solver(linearization: int, deterministic_time: float, gap: float, memory_mb: int, seed: int) -> cp_model.CpSolver:
    """Return a solver with one worker, a given seed and deterministic limits only.

    Measured on PPO with 64 and 256 GPUs: without the linear relaxation, the search over meshes takes half the time;
    with fixed meshes what is left is a knapsack over memory, which only the relaxation solves quickly. Where few
    layouts are left and many orders are (asynchronous pipelines with several syncs), only the strong relaxation closes
    some programs, and probing closes in a tenth of a second what stays open for ten without.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = deterministic_time
    solver.parameters.relative_gap_limit = gap
    solver.parameters.max_memory_in_mb = memory_mb
    solver.parameters.linearization_level = linearization
    solver.parameters.symmetry_level = 0
    solver.parameters.catch_sigint_signal = False
    return solver


def _interruptible(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Solve in a thread of its own, so that Ctrl-C reaches Python at once: stops the search and raises."""
    status: list[cp_model.CpSolverStatus] = []
    thread = threading.Thread(target=lambda: status.append(solver.solve(model)))
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        solver.stop_search()
        thread.join()
        raise
    return status[0]


def _plan(data: Data, v: Variables, solver: cp_model.CpSolver) -> Relaxed:
    """Read a plan off the solver."""
    nodes: dict[str, int] = {}
    boxes: dict[str, tuple[int, Box]] = {}
    for stage, options in v.options.items():
        chosen = next(option for option in options if solver.value(option.chosen))
        nodes[stage], boxes[stage] = chosen.node, (chosen.mesh_class, chosen.box)
    tree = range(len(data.template.parents))
    shapes = tuple(next((m for m in data.classes_of(g) if solver.value(v.shape[g, m])), None) for g in tree)
    cuts = tuple(bool(solver.value(v.along_gpus[g])) for g in tree)
    starts = {name: solver.value(start) for name, start in v.start.items()}
    return Relaxed(Meshes(shapes, cuts, nodes), boxes, starts, solver.value(v.period))
