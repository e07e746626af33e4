"""One integer program over boxes: data, variables, constraints, objective, solve."""

from __future__ import annotations

from dataclasses import dataclass

from ortools.sat.python import cp_model

from rpegc.search.boxes import Box
from rpegc.search.constraints import CONSTRAINTS, total
from rpegc.search.variables import Data, Goal, Meshes, Variables, declare


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A plan over boxes: meshes, the chosen box of every GPU stage, starts and durations, all in milliseconds."""

    meshes: Meshes
    boxes: dict[str, tuple[int, Box]]
    start_ms: dict[str, int]
    milliseconds: dict[str, int]
    period: int
    objective: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What one integer program said: a plan if it found one, a lower bound of its goal, and how hard it was.

    `infeasible` and `optimal` are proofs; neither holds when the deterministic limit ended the search.
    """

    plan: Relaxed | None
    bound: int
    infeasible: bool
    optimal: bool
    deterministic_time: float
    variables: int
    constraints: int


def solve_master(data: Data, deterministic_time: float, gap: float = 0.0, memory_mb: int = 2000) -> Answer:
    """Build and solve the integer program of `data`; stops early at a relative `gap` or at the deterministic limit."""
    # Variables
    v = declare(data)
    if not all(v.options.values()):
        return Answer(None, data.cutoff + 1, True, False, 0.0, 0, 0)

    # Constraints
    for constrain in CONSTRAINTS:
        constrain(data, v)

    # Objective
    goal = _goal(data, v)
    v.model.minimize(goal)

    # Solve
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = deterministic_time
    solver.parameters.relative_gap_limit = gap
    solver.parameters.max_memory_in_mb = memory_mb
    solver.parameters.linearization_level = int(__import__("os").environ.get("LIN","0"))
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    solver.parameters.catch_sigint_signal = False
    status = solver.solve(v.model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(
        plan=_plan(data, v, solver) if found else None,
        bound=round(solver.best_objective_bound) if status != cp_model.INFEASIBLE else data.cutoff + 1,
        infeasible=status == cp_model.INFEASIBLE,
        optimal=status == cp_model.OPTIMAL and gap == 0.0,
        deterministic_time=solver.response_proto.deterministic_time,
        variables=len(v.model.proto.variables),
        constraints=len(v.model.proto.constraints),
    )


def _goal(data: Data, v: Variables) -> cp_model.LinearExprT:
    """Return what to minimise."""
    if data.goal is Goal.HEADROOM:
        return -v.headroom
    if data.goal is Goal.ORDER:
        return total(v.all_options(), lambda option: option.box.order)
    if data.goal is Goal.DEVICES or data.devices is not None:
        devices = devices_of(data, v)
        if data.devices is not None:
            v.model.add(devices <= data.devices)
        if data.goal is Goal.DEVICES:
            return devices
    return v.period


def devices_of(data: Data, v: Variables) -> cp_model.LinearExprT:
    """Return a number that ranks plans by the nodes they occupy, then by the GPUs: nodes * (GPUs + 1) + GPUs."""
    shapes, cluster = data.problem.mesh_classes, data.problem.cluster
    nodes: dict[int, cp_model.IntVar] = {}
    gpus: dict[int, cp_model.IntVar] = {}
    for g in reversed(range(len(data.template.parents))):
        nodes[g] = v.model.new_int_var(0, cluster.nodes, f"nodes[{g}]")
        gpus[g] = v.model.new_int_var(0, cluster.gpus, f"gpus[{g}]")
        children = data.template.children(g)
        v.model.add(gpus[g] >= sum(gpus[child] for child in children))
        for child in children:
            v.model.add(nodes[g] >= nodes[child])
        if len(children) > 1:
            beside = nodes[g] >= sum(nodes[child] for child in children)
            v.model.add(beside).only_enforce_if(~v.along_gpus[g])
        own_nodes = sum(shapes[m].nodes * v.shape[g, m] for m in data.classes_of(g))
        own_gpus = sum(shapes[m].gpus * v.shape[g, m] for m in data.classes_of(g))
        for on in (on for (_, home), on in v.on.items() if home == g):
            v.model.add(nodes[g] >= own_nodes).only_enforce_if(on)
            v.model.add(gpus[g] >= own_gpus).only_enforce_if(on)
    return (cluster.gpus + 1) * nodes[0] + gpus[0]


def _plan(data: Data, v: Variables, solver: cp_model.CpSolver) -> Relaxed:
    """Read a plan off the solver."""
    nodes: dict[str, int] = {}
    boxes: dict[str, tuple[int, Box]] = {}
    for stage, options in v.options.items():
        chosen = next(option for option in options if solver.value(option.chosen))
        nodes[stage], boxes[stage] = chosen.node, (chosen.mesh_class, chosen.box)
    shapes: list[int | None] = []
    for g in range(len(data.template.parents)):
        shapes.append(next((m for m in data.classes_of(g) if solver.value(v.shape[g, m])), None))
    cuts = tuple(bool(solver.value(v.along_gpus[g])) for g in range(len(data.template.parents)))
    return Relaxed(
        meshes=Meshes(tuple(shapes), cuts, nodes),
        boxes=boxes,
        start_ms={name: solver.value(start) for name, start in v.start.items()},
        milliseconds={name: solver.value(duration) for name, duration in v.duration.items()},
        period=solver.value(v.period),
        objective=round(solver.objective_value),
    )
