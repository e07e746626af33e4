"""The price of a given plan, compiled or a launch of other people: does it fit, and what breaks it if not.

The tables, terms and residuals are those of the search; a plan is priced as a table of one row a stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML

from rpegc.catalog import catalogue_models
from rpegc.cost.host_memory import node_terms, object_store_bytes
from rpegc.cost.price import price
from rpegc.cost.table import PriceTable
from rpegc.cost.work import StageWork, stage_works
from rpegc.errors import InputError
from rpegc.frontend.expand import expand
from rpegc.frontend.load import pipeline_from_text, restore_pipeline
from rpegc.frontend.pipeline import Pipeline
from rpegc.hardware import Machine
from rpegc.importers.verl import Launch, read_launch
from rpegc.ir.graph import Graph, Op
from rpegc.plan import MemoryPhase, Plan
from rpegc.search.bind import memory_phase, phase_bytes
from rpegc.setting import Options, setting_of, work_context
from rpegc.target import Layout, Mesh, columns_of

EVEN = 0.5
"""A plan counts as fitting if that is likelier than not; what the planner itself chooses fits with 0.95."""

LARGEST_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """A plan to be priced: every GPU stage of the graph has a work, a layout and a mesh on its machine."""

    name: str
    graph: Graph
    works: Mapping[str, StageWork]
    layouts: Mapping[str, Layout]
    meshes: Mapping[str, Mesh]
    machines: Mapping[str, Machine]
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds by stage, memory by phase, and the verdict: the phase that is nearest to its limit, or over it.

    `where` is "device" or "host"; `term` the stage and term with most bytes there; `margin_bytes` is what is left of
    the capacity (negative: what is missing); `fit_probability` is that of the device, or 0 where the host overflows.
    """

    name: str
    fits: bool
    where: str
    phase: str
    term: str
    total_bytes: float
    capacity_bytes: float
    fit_probability: float
    stages: Mapping[str, float]
    memory: tuple[MemoryPhase, ...]
    ignored: tuple[str, ...]
    assumed: tuple[str, ...]

    @property
    def margin_bytes(self) -> float:
        """Bytes left of the capacity."""
        return self.capacity_bytes - self.total_bytes


def estimate(given: GivenPlan) -> Estimate:
    """Price a given plan."""
    priced = {name: _priced(given, name) for name in given.layouts}
    phases = tuple(_phase(given, priced, name) for name in given.layouts)
    seconds = {name: float(table.seconds[0]) for name, (table, _) in priced.items()}
    device = max(phases, key=lambda phase: phase.device_total_bytes / phase.device_capacity_bytes)
    host = max(phases, key=lambda phase: phase.host_total_bytes / phase.host_capacity_bytes)
    stuck = [name for name, value in seconds.items() if not np.isfinite(value)]
    probability = min(phase.fit_probability for phase in phases)
    host_share = host.host_total_bytes / host.host_capacity_bytes
    if host_share > 1.0 and probability >= EVEN and not stuck:
        where, phase, terms = "host", host, host.host_bytes
        total, capacity, probability = host.host_total_bytes, host.host_capacity_bytes, 0.0
    elif stuck and probability >= EVEN:
        return _stuck(given, priced, stuck[0], seconds, phases)
    else:
        where, phase, terms = "device", device, device.device_bytes
        total, capacity = device.device_total_bytes, device.device_capacity_bytes
    term = max(terms, key=lambda name: (terms[name], name))
    return Estimate(
        given.name, probability >= EVEN, where, phase.phase, term, total, capacity, probability, seconds, phases,
        given.ignored, given.assumed,
    )  # fmt: skip


def _stuck(
    given: GivenPlan,
    priced: Mapping[str, tuple[PriceTable, int]],
    name: str,
    seconds: Mapping[str, float],
    phases: tuple[MemoryPhase, ...],
) -> Estimate:
    """An engine whose share of the GPU has no room for the cache of one longest sequence beside its weights."""
    table, _ = priced[name]
    amounts = {term.name: float(term.bytes[0]) for term in table.memory if term.name.startswith("engine_w")}
    share = float(table.layouts["memory_fraction"][0])
    capacity = share * given.machines[name].accelerator.hbm_bytes.value
    total = sum(amounts.values())
    return Estimate(
        given.name, False, "device", name, f"{name}.kv_cache", total, capacity, 0.0, seconds, phases,
        given.ignored, given.assumed,
    )  # fmt: skip


def _priced(given: GivenPlan, name: str) -> tuple[PriceTable, int]:
    mesh = given.meshes[name].mesh_class
    return price(given.works[name], mesh, columns_of([given.layouts[name]], mesh), given.machines[name]), 0


def _phase(given: GivenPlan, priced: Mapping[str, tuple[PriceTable, int]], name: str) -> MemoryPhase:
    """Return the memory of one stage's GPUs while it runs: its own, and what stays of the stages that share them."""
    mesh, machine = given.meshes[name], given.machines[name]
    around = {
        stage.name: stage
        for stage in given.graph.stages
        if stage.name in given.layouts and given.meshes[stage.name].overlaps(mesh)
    }
    device, host = phase_bytes({other: priced[other] for other in around}, around, around[name])
    stores = [object_store_bytes(work, machine) for work in given.works.values() if work.op is Op.GENERATE]
    workers = [work.workers_per_node for work in given.works.values() if work.op is Op.FUNCTION]
    most = min(max(workers, default=1), int(machine.host_cores.value))
    once = node_terms(max(stores, default=0.0), reward_workers=most)
    host = {f"node.{term.name}": float(term.bytes.sum()) for term in once} | host
    capacities = (machine.accelerator.hbm_bytes.value, machine.host_bytes.value)
    return memory_phase(mesh.name, name, device, host, around, capacities)


def given_by_plan(plan: Plan) -> GivenPlan:
    """Return a compiled plan as one to be priced; it needs no other file."""
    pipeline = restore_pipeline(plan.pipeline)
    setting = setting_of(pipeline, Options()).of_engine(plan.graph.engine)
    layouts = {stage.name: stage.layout for stage in plan.stages if stage.layout is not None}
    meshes = {name: plan.mesh(plan.stage(name).mesh) for name in layouts}
    machines = {name: setting.machines.get(mesh.pool, setting.machine) for name, mesh in meshes.items()}
    return GivenPlan(plan.name, plan.graph, stage_works(plan.graph, setting.work), layouts, meshes, machines)


def given_by_launch(text: str, name: str, hardware: str, model: str | None = None) -> GivenPlan:
    """Return a launch of verl (a script or a list of overrides, as text) as a plan to be priced.

    Raises InputError for what is missing, contradictory or beyond what rpegc prices.
    """
    launch = read_launch(text, name, hardware, model, catalogue_models())
    pipeline = pipeline_of(launch)
    graph = expand(pipeline)
    places = {stage.name: (stage.op.value, stage.model) for stage in graph.stages if stage.op.on_gpus}
    nodes = max(mesh.first_node + mesh.nodes for mesh in launch.meshes.values())
    widest = max(mesh.gpus_per_node for mesh in launch.meshes.values())
    if widest > pipeline.machine.gpus_per_node:
        message = f"the launch takes {widest} GPUs a node; a node of {hardware} has {pipeline.machine.gpus_per_node}"
        raise InputError(message)
    if pipeline.machine.system_nodes and nodes > pipeline.machine.system_nodes:
        raise InputError(f"the launch takes {nodes} nodes; {hardware} has {pipeline.machine.system_nodes}")
    return GivenPlan(
        name,
        graph,
        stage_works(graph, work_context(pipeline, "verl", launch.engine)),
        {stage: launch.layouts[place] for stage, place in places.items()},
        {stage: launch.meshes[place] for stage, place in places.items()},
        dict.fromkeys(places, pipeline.machine),
        launch.ignored,
        launch.assumed,
    )


def pipeline_of(launch: Launch) -> Pipeline:
    """Return the pipeline of a launch, checked like one from a file."""
    text = StringIO()
    YAML(typ="safe", pure=True).dump(launch.pipeline, text)
    return pipeline_from_text(text.getvalue(), "the imported pipeline")


def read_text(path: Path) -> str:
    """Return the text of a launch script. Raises InputError where it cannot be read, or is far too long for one."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path}: longer than the {LARGEST_FILE} bytes of a launch script")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
