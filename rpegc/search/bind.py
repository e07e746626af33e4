"""From a solver's choice back to meshes, layouts, terms and memory: the bound plan's parts, in SI units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rpegc.cost.fit import fit_probability
from rpegc.cost.fusion import held_beside
from rpegc.cost.table import MemoryTerm, PriceTable
from rpegc.ir.fusion import unit_names, unit_of, units
from rpegc.ir.graph import Graph, Op, Stage
from rpegc.plan import MemoryPhase, PlannedStage, PlannedTerm
from rpegc.search.solver.geometry import rectangles
from rpegc.search.solver.problem import Choice, Problem
from rpegc.search.tabulate import Tables
from rpegc.target import Layout, Mesh, layout_at


def unfolded(graph: Graph, choice: Choice) -> Choice:
    """Return the choice by stage: members of a composite share their unit's mesh, layout, start and duration."""
    unit = unit_names(graph)
    gpu = [stage.name for stage in graph.stages if stage.op.on_gpus]
    return replace(
        choice,
        nodes={name: choice.nodes[unit[name]] for name in gpu},
        layouts={name: choice.layouts[unit[name]] for name in gpu},
        milliseconds={name: choice.milliseconds[unit[name]] for name in unit},
        start_ms={name: choice.start_ms[unit[name]] for name in unit},
    )


def bind_meshes(graph: Graph, problem: Problem, choice: Choice) -> dict[int, Mesh]:
    """Return the meshes that stages sit on, by tree node, named after what runs there."""
    occupied = sorted(set(choice.nodes.values()))
    names = _mesh_names(graph, choice, occupied)
    bound = {}
    for node, mesh in enumerate(_in_pools(problem, choice, rectangles(problem, choice))):
        if node in occupied:
            assert mesh is not None, "a stage sits on an unused mesh"
            bound[node] = replace(mesh, name=names[node])
    return bound


def _in_pools(problem: Problem, choice: Choice, meshes: tuple[Mesh | None, ...]) -> tuple[Mesh | None, ...]:
    """Count the nodes of each mesh in its own pool; nothing changes where the cluster has no pools."""
    taken: dict[str, int] = {}
    shift: dict[int, int] = {}
    placed: list[Mesh | None] = []
    for node, mesh in enumerate(meshes):
        index = choice.mesh_classes[node]
        pool = "" if index is None else problem.mesh_classes[index].pool
        if mesh is None or not pool:
            placed.append(mesh)
            continue
        top = next(ancestor for ancestor in choice.template.path(node) if choice.template.parents[ancestor] == 0)
        if top == node:
            shift[node] = taken.get(pool, 0) - mesh.first_node
            taken[pool] = taken.get(pool, 0) + mesh.nodes
        placed.append(replace(mesh, first_node=mesh.first_node + shift[top], pool=pool))
    return tuple(placed)


def _mesh_names(graph: Graph, choice: Choice, occupied: list[int]) -> dict[int, str]:
    """Name a mesh after what runs there: one mesh is the pool; else trainer, rollout, or the role that has it."""
    names: dict[int, str] = {}
    for node in occupied:
        stages = [graph.stage(name) for name, place in choice.nodes.items() if place == node]
        ops = {stage.op for stage in stages}
        if len(occupied) == 1:
            name = "pool"
        elif ops == {Op.GENERATE}:
            name = "rollout"
        elif Op.TRAIN in ops:
            name = "trainer"
        else:
            name = "_".join(sorted({stage.model for stage in stages}))
        names[node] = name if name not in names.values() else f"{name}_{node}"
    return names


def chosen_row(tables: Tables, choice: Choice, stage: str) -> tuple[PriceTable, int]:
    """Return the price table and the row that the choice picked for a GPU stage."""
    index = choice.mesh_classes[choice.nodes[stage]]
    assert index is not None, f"{stage} sits on an unused mesh"
    return tables.cells[stage][tables.meshes[index]], choice.layouts[stage]


def bind_stages(graph: Graph, tables: Tables, choice: Choice, meshes: Mapping[int, Mesh]) -> tuple[PlannedStage, ...]:
    """Return every stage with its mesh, layout, start, seconds and bill of terms, in graph order."""
    earliest = min(choice.start_ms.values())
    together = units(graph)
    bound = []
    for stage in graph.stages:
        start = (choice.start_ms[stage.name] - earliest) / 1000.0
        layout: Layout | None = None
        mesh = ""
        interval = (1.0, 1.0)
        completion: tuple[float, ...] = ()
        if stage.op.on_gpus:
            table, row = chosen_row(tables, choice, stage.name)
            layout, mesh, interval = (
                layout_at(table.layouts, row),
                meshes[choice.nodes[stage.name]].name,
                table.interval,
            )
            terms = {
                term.name: PlannedTerm(
                    float(term.seconds[row]), float(term.hidden_seconds[row]), term.provenance, term.source
                )
                for term in table.times
            }
            members = together[unit_of(stage)]
            chosen = [chosen_row(tables, choice, member.name) for member in members]
            seconds = sum(float(part.seconds[place]) for part, place in chosen)
            if any(edge.chunks > 1 for edge in graph.out_of(stage.name)) and table.completion.shape[1] > 1:
                completion = tuple(float(done) for done in table.completion[row])
        elif stage.op is Op.FUNCTION:
            terms = {
                term.name: PlannedTerm(
                    float(term.seconds.sum()), float(term.hidden_seconds.sum()), term.provenance, term.source
                )
                for term in tables.functions[stage.name]
            }
            seconds = sum(term.seconds for term in terms.values())
        else:
            seconds = choice.milliseconds[stage.name] / 1000.0
            ends = (next(graph.into(stage.name)).source, next(graph.out_of(stage.name)).target)
            apart = len({meshes[choice.nodes[end]].pool for end in ends}) > 1
            how = ("assumed", "the network between the pools") if apart else ("fitted", "rpegc.cost.transitions")
            terms = {"weight_transfer": PlannedTerm(seconds, 0.0, *how)}
            interval = (0.6, 1.6)
        bound.append(
            PlannedStage(
                stage.name, stage.op.value, stage.model, mesh, layout, start, seconds, interval, terms, completion
            )
        )
    return tuple(bound)


def bind_memory(
    graph: Graph,
    tables: Tables,
    choice: Choice,
    meshes: Mapping[int, Mesh],
    capacities_bytes: tuple[float, float],
    node_terms: tuple[MemoryTerm, ...],
    pools: Mapping[str, tuple[tuple[float, float], tuple[MemoryTerm, ...]]] | None = None,
) -> tuple[MemoryPhase, ...]:
    """Return memory per mesh and phase: what stays resident of all stages around, plus the running stage's own.

    `pools` holds capacities and node terms of pools of unlike machines.

    Host bytes are those of the stages on this mesh and around it, and `node_terms`, which every node holds.
    """
    phases = []
    for node, mesh in meshes.items():
        path = choice.template.path(node)
        if pools and mesh.pool in pools:
            capacities_bytes, node_terms = pools[mesh.pool]
        around = {s.name: s for s in graph.stages if s.op.on_gpus and choice.nodes[s.name] in path}
        for phase in (name for name in around if choice.nodes[name] == node):
            device, host = phase_bytes({n: chosen_row(tables, choice, n) for n in around}, around, around[phase])
            host = {f"node.{term.name}": float(term.bytes.sum()) for term in node_terms} | host
            phases.append(memory_phase(mesh.name, phase, device, host, around, capacities_bytes))
    return tuple(phases)


def memory_phase(
    mesh: str,
    phase: str,
    device: dict[str, float],
    host: dict[str, float],
    around: Mapping[str, Stage],
    capacities_bytes: tuple[float, float],
) -> MemoryPhase:
    """Return one phase from its named bytes of one GPU and of one node's host; names begin with the stage's."""
    by_op: dict[Op, float] = {}
    for name, amount in device.items():
        op = around[name.split(".")[0]].op
        by_op[op] = by_op.get(op, 0.0) + amount
    return MemoryPhase(
        mesh=mesh,
        phase=phase,
        device_bytes=device,
        device_total_bytes=sum(device.values()),
        device_capacity_bytes=capacities_bytes[0],
        fit_probability=fit_probability(by_op, capacities_bytes[0]),
        host_bytes=host,
        host_total_bytes=sum(host.values()),
        host_capacity_bytes=capacities_bytes[1],
    )


def phase_bytes(
    priced: Mapping[str, tuple[PriceTable, int]], around: Mapping[str, Stage], phase: Stage
) -> tuple[dict[str, float], dict[str, float]]:
    """Return named bytes of one GPU and of one node's host while `phase` runs beside what stays of the others.

    `priced` holds the table and the row of each stage `around`.
    """
    device: dict[str, float] = {}
    host: dict[str, float] = {}
    shared: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
    for name in around:
        table, row = priced[name]
        signature = (around[name].model, table.signatures[int(table.signature[row])])
        for term in table.memory:
            amount = float(term.bytes[row])
            beside = unit_of(around[name]) == unit_of(phase) and held_beside(term, phase.op is Op.TRAIN)
            if not amount or (term.residence == "working" and name != phase.name and not beside):
                continue
            if term.residence == "weights" and signature in shared:
                continue
            (host if term.residence == "host" else device)[f"{name}.{term.name}"] = amount
        shared.add(signature)
    return device, host
