"""What stays the same while a pipeline's structures are priced: the target, the machines, the space, the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import backends
import search_spaces
from backends.site import load_site
from rpegc.cost.host_memory import node_terms, object_store_bytes
from rpegc.cost.table import MemoryTerm
from rpegc.cost.transitions import Link, link_between
from rpegc.cost.work import StageWork, WorkContext
from rpegc.emit import Backend, TargetRefusal
from rpegc.errors import InputError
from rpegc.frontend.pipeline import Pipeline
from rpegc.hardware import Machine, Pool
from rpegc.ir.graph import Graph, Op
from rpegc.rewrite import Context
from rpegc.search.choose import Solver
from rpegc.search.facts import apart, stage_facts
from rpegc.search.meshes import mesh_menu, pool_menu
from rpegc.search.solver.solve_ilp import solve as solve_ilp
from rpegc.search.tabulate import pool_of
from rpegc.target import Capabilities, MeshClass, Tie

PoolLimits = dict[str, tuple[tuple[float, float], tuple[MemoryTerm, ...]]]
"""By pool: bytes of one GPU and of one node's host, and what every node holds whatever the plan."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a compilation can be asked for beyond the pipeline: search space, seed, proof tolerance, solver, flavour.

    `flavour` stands for the pipeline's `target_flavour`; "" leaves that. `unrestricted` also searches without the
    target's limits; `trials` of knobs are simulated, kept in `storage`; `checkpoint` keeps what was solved, so that a
    killed search goes on.
    """

    space: str = "default"
    seed: int = 1
    tolerance: float = 0.01
    solver: Solver = solve_ilp
    flavour: str = ""
    unrestricted: bool = False
    trials: int = 0
    storage: Path | None = None
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that stays the same while variants are priced and solved.

    `context` and `work` are those of the target's first training engine; `of_engine` returns the setting of another.
    """

    pipeline: Pipeline
    backend: Backend
    machine: Machine
    nodes: int
    space: search_spaces.Space
    context: Context
    work: WorkContext
    options: Options
    engines: tuple[Capabilities, ...] = ()
    pools: tuple[Pool, ...] = ()
    """The pools of a cluster of unlike machines; `machine` is the first one's, `nodes` those of all. Else none."""
    free: bool = False
    """Whether the target's limits are set aside (see `rpegc.compiler.unrestricted`)."""

    def ties_for(self, graph: Graph) -> tuple[Tie, ...]:
        """Return the stages that the target runs with equal layout fields."""
        return () if self.free else self.backend.ties_for(graph)

    @property
    def machines(self) -> dict[str, Machine]:
        """The machine of each pool of unlike machines."""
        return {pool.name: pool.machine for pool in self.pools}

    def of_engine(self, name: str) -> Setting:
        """Return the setting of the training engine of this name."""
        found = next((engine for engine in self.engines if engine.engine == name), self.context.capabilities)
        if found is self.context.capabilities:
            return self
        work = replace(self.work, engine_class=found.engine_class, class_for=found.class_for)
        return replace(self, context=replace(self.context, capabilities=found), work=work)

    @property
    def capacities_bytes(self) -> tuple[float, float]:
        """Memory of one GPU and of one node's host."""
        return self.machine.accelerator.hbm_bytes.value, self.machine.host_bytes.value

    def pool_limits(self, works: Mapping[str, StageWork]) -> PoolLimits:
        """Return capacities and what every node holds, for each pool of unlike machines."""
        limits = {}
        for pool in self.pools:
            own = replace(self, machine=pool.machine)
            limits[pool.name] = (own.capacities_bytes, own.node_terms(works))
        return limits

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The user's price of a GPU hour, or the catalogue's."""
        given, known = self.pipeline.spec.cluster.usd_per_gpu_hour, self.machine.usd_per_gpu_hour
        return given if given is not None else None if known is None else known.value

    def node_terms(self, works: Mapping[str, StageWork]) -> tuple[MemoryTerm, ...]:
        """Return what every node holds whatever the plan: system, object store, data workers."""
        stores = [object_store_bytes(work, self.machine) for work in works.values() if work.op is Op.GENERATE]
        workers = [work.workers_per_node for work in works.values() if work.op is Op.FUNCTION]
        most = min(max(workers, default=1), int(self.machine.host_cores.value))
        return node_terms(max(stores, default=0.0), reward_workers=most)

    def facts(self, graph: Graph, works: Mapping[str, StageWork]) -> dict[str, dict[str, int | float]]:
        """Return, for every stage with a layout, the context columns that rules may read."""
        gpu = [stage for stage in graph.stages if stage.op.on_gpus]
        machine = {stage.name: self.machines.get(pool_of(stage), self.machine) for stage in gpu}
        return {
            stage.name: {
                **stage_facts(works[stage.name], self.work, machine[stage.name]),
                "apart": int(apart(stage, gpu)),
            }
            for stage in gpu
        }

    @property
    def link(self) -> Link | None:
        """The network between the pools of unlike machines."""
        if not self.pools:
            return None
        assert self.pipeline.spec.cluster.pools is not None, "pools come from the pipeline"
        one, other = (pool.machine for pool in self.pools)
        return link_between(one, other, self.pipeline.spec.cluster.pools.link_bandwidth)

    @property
    def meshes(self) -> tuple[MeshClass, ...]:
        """The mesh classes of the space."""
        if self.pools:
            return pool_menu(self.pools, self.space.node_counts)
        return mesh_menu(self.nodes, self.machine.gpus_per_node, self.space.node_counts, self.space.slices)


def setting_of(pipeline: Pipeline, options: Options) -> Setting:
    """Gather what a pipeline and options say into one setting."""
    pipeline = pipeline.with_flavour(options.flavour)
    flavour = (pipeline.spec.target_flavour,) if pipeline.spec.target_flavour else ()
    load_site(pipeline.site, pipeline.position(("cluster", "site")))
    try:
        backend = backends.backend(pipeline.spec.target, *flavour)
        backend.check_pipeline(pipeline.resolved())
    except TargetRefusal as refusal:
        raise InputError(refusal.message, pipeline.position(refusal.path), refusal.hint) from None
    models = pipeline.model_facts()
    engines = backend.engines(pipeline.resolved())
    capabilities = engines[0]
    space = search_spaces.load_space(options.space)
    work = work_context(pipeline, capabilities.name, capabilities.engine_class, capabilities.class_for)
    pools = pipeline.pools if len(pipeline.pools) > 1 else ()
    context = Context(models, pipeline.workload_facts(), pipeline.allowance(), space.values, capabilities, bool(pools))
    return Setting(pipeline, backend, pipeline.machine, pipeline.nodes, space, context, work, options, engines, pools)


def work_context(
    pipeline: Pipeline, framework: str, engine_class: str, class_for: Callable[[str, str], str] | None = None
) -> WorkContext:
    """Return what prices may know of a pipeline that an engine of this framework carries out."""
    workload = pipeline.workload_facts()
    return WorkContext(
        architectures=pipeline.architectures,
        prompts=workload.prompts_per_step,
        samples_per_prompt=workload.samples_per_prompt,
        minibatches=workload.minibatches_per_step,
        epochs=workload.epochs_per_batch,
        prompt_tokens=pipeline.prompt_lengths(),
        response_tokens=pipeline.response_lengths(),
        lora_ranks={role: facts.lora_rank for role, facts in pipeline.model_facts().items()},
        framework=framework,
        engine_class=engine_class,
        class_for=class_for,
    )
