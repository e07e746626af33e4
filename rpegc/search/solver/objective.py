"""The goals of the integer program: the period first, then fewest nodes, most headroom, canonical order."""

from __future__ import annotations

from ortools.sat.python import cp_model

from rpegc.search.solver.expressions import Linear, total
from rpegc.search.solver.measures import devices_used
from rpegc.search.solver.variables import Data, Goal, Variables


def objective(data: Data, v: Variables) -> Linear:
    """Return what to minimise for the goal of `data`."""
    if data.goal is Goal.HEADROOM:
        return -v.headroom
    if data.goal is Goal.ORDER:
        return total(v.all_options(), lambda option: option.box.order)
    return v.period if v.devices is None else v.devices


def constrain_goals(data: Data, v: Variables) -> None:
    """A plan for a later goal is no worse than the incumbent in the earlier ones, and better in its own."""
    if data.order is not None:
        v.model.add(total(v.all_options(), lambda option: option.box.order) <= data.order)
    if data.devices is not None and data.fixed is not None:
        v.model.add(v.model.new_constant(devices_used(data.problem, data.template, data.fixed)) <= data.devices)
    elif data.devices is not None:
        v.devices = v.model.new_int_var(0, max(0, data.devices), "devices")
        v.model.add(v.devices >= _devices(data, v))


def _devices(data: Data, v: Variables) -> Linear:
    """Return what `measures.devices_used` counts: nodes * (GPUs + 1) + GPUs, of meshes with a stage on them."""
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
