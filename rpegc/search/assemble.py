"""From the winning solution to the Plan: meshes, stages, memory, rates, certificate, alternatives, assumptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rpegc import __version__
from rpegc.cost.table import MemoryTerm
from rpegc.cost.work import StageWork, WorkContext
from rpegc.cost.work_depth import stage_work_flops
from rpegc.hardware import Machine, Pool
from rpegc.ir.fusion import units
from rpegc.ir.graph import Graph, Op
from rpegc.ir.meaning import CARRIES, SAMPLES, TAIL_SHARE, staleness_bound
from rpegc.plan import (
    Alternative,
    Assumption,
    Devices,
    Objective,
    Plan,
    PlannedRewrite,
    PlannedStage,
    PoolDevices,
    SearchRecord,
    Staleness,
    Target,
    Transition,
)
from rpegc.search.bind import bind_memory, bind_meshes, bind_stages, unfolded
from rpegc.search.bound_schedule import BoundSchedule
from rpegc.search.choose import Attempt, Outcome
from rpegc.search.solver.problem import Choice
from rpegc.target import Mesh
from rpegc.units import HOUR, format_seconds


@dataclass(frozen=True, slots=True)
class Request:
    """What the plan is for: the resolved pipeline and everything the search was given."""

    name: str
    pipeline: dict[str, Any]
    seed: int
    target: Target
    objective: str
    space: str
    machine: Machine
    nodes: int
    work_context: WorkContext
    works: Mapping[str, StageWork]
    node_terms: tuple[MemoryTerm, ...]
    capacities_bytes: tuple[float, float]
    meshes: int
    tolerance: float
    usd_per_gpu_hour: float | None
    max_staleness: int
    partial_rollout: bool
    idle_reason: str
    pools: tuple[Pool, ...] = ()
    pool_limits: Mapping[str, tuple[tuple[float, float], tuple[MemoryTerm, ...]]] | None = None


def assemble(request: Request, outcome: Outcome) -> Plan:
    """Build the plan of a search that found one."""
    winner = outcome.winner
    assert winner is not None, "a plan needs a winner"
    choice = winner.solution.choice
    period = winner.solution.period
    assert choice is not None, "a winner has a choice"
    assert period is not None, "a winner has a period"
    graph, tables = winner.variant.graph, winner.variant.tables
    choice = unfolded(graph, choice)
    meshes = bind_meshes(graph, winner.variant.problem, choice)
    stages = bind_stages(graph, tables, choice, meshes)
    memory = bind_memory(
        graph, tables, choice, meshes, request.capacities_bytes, request.node_terms, request.pool_limits
    )
    schedule = BoundSchedule(graph, choice, stages, meshes, math.ceil(period))
    period_s = float(period) / 1000.0
    assert winner.cost, "a winner has a cost"
    bound_s = min(1.0, outcome.bound_cost / winner.cost) * period_s
    devices = _devices(request, meshes)
    gpu_hours = devices.gpus * period_s / HOUR
    usd = None if request.usd_per_gpu_hour is None else gpu_hours * request.usd_per_gpu_hour
    return Plan(
        name=request.name,
        target=request.target,
        rpegc_version=__version__,
        seed=request.seed,
        pipeline=request.pipeline,
        graph=graph,
        knobs=knobs_of_graph(graph) | ({"engine": graph.engine} if graph.engine else {}),
        transitions=_transitions(graph, stages),
        period_s=period_s,
        period_interval_s=schedule.interval_s(),
        lower_bound_s=bound_s,
        gap=1 - bound_s / period_s if period_s else 0.0,
        objective=Objective(
            request.objective, {"step_time": period_s, "gpu_hours": gpu_hours}.get(request.objective, usd or 0.0)
        ),
        tokens_per_s_per_gpu=_tokens(request) / (period_s * devices.gpus),
        mfu=_mfu(request, graph, stages, meshes, choice),
        gpu_hours_per_step=gpu_hours,
        usd_per_step=usd,
        devices=devices,
        meshes=tuple(meshes[node] for node in sorted(meshes)),
        stages=stages,
        memory=memory,
        rewrites=_rewrites(graph, outcome, winner),
        staleness=_staleness(graph),
        search=SearchRecord(
            request.space,
            _status(outcome, winner, request),
            len(outcome.attempts),
            request.meshes,
            max(attempt.variant.tables.layouts for attempt in outcome.attempts),
            max(
                attempt.variant.tables.layouts
                - int(attempt.solution.statistics.get("rows", attempt.variant.problem.rows))
                for attempt in outcome.attempts
            ),
            any("period" in attempt.solution.limit_hit for attempt in outcome.attempts),
        ),
        alternatives=_alternatives(outcome, winner),
        assumptions=_assumptions(stages, request),
        warnings=_warnings(
            request,
            memory_shortest=min((p.fit_probability for p in memory), default=1.0),
            devices=devices,
            stages=stages,
            measurement=schedule.best_measurement(),
        ),
        bottleneck=schedule.bottleneck(period_s),
    )


def knobs_of_graph(graph: Graph) -> dict[str, int | float | str]:
    """Return what couples stages and is no layout: staleness, and chunks, tail and carried samples where they are."""
    tails = [stage.name for stage in graph.of_op(Op.GENERATE) if stage.attribute(SAMPLES) == "tail"]
    chunks = max((edge.chunks for edge in graph.edges if edge.source not in tails), default=1)
    engines = graph.of_op(Op.GENERATE)
    tail = max((float(stage.attribute(TAIL_SHARE, 0.0)) for stage in engines), default=0.0)
    carries = max((int(stage.attribute(CARRIES, 0)) for stage in engines), default=0)
    given = {"chunks": chunks if chunks > 1 else 0, "tail_share": tail, "carries": carries}
    knobs: dict[str, int | float | str] = {"staleness": staleness_bound(graph)}
    return knobs | {name: value for name, value in given.items() if value}


def _staleness(graph: Graph) -> Staleness:
    """Return the bound, which the schedule of a plan without interruption reaches at every step."""
    bound = staleness_bound(graph)
    return Staleness(bound, float(bound), bound)


def _devices(request: Request, meshes: Mapping[int, Mesh]) -> Devices:
    """The nodes that the launch asks for: up to the last one a mesh reaches, in each pool."""
    machines = [("", request.machine), *((pool.name, pool.machine) for pool in request.pools)]
    found = [
        _pool_devices(name, machine, tuple(mesh for mesh in meshes.values() if mesh.pool == name))
        for name, machine in machines[bool(request.pools) :]
    ]
    return Devices(
        " and ".join(dict.fromkeys(pool.hardware for pool in found)),
        sum(pool.nodes for pool in found),
        sum(pool.gpus for pool in found),
        found[0].gpus_per_node,
        sum(pool.idle_gpus for pool in found),
        tuple(found) if request.pools else (),
    )


def _pool_devices(name: str, machine: Machine, meshes: tuple[Mesh, ...]) -> PoolDevices:
    per_node = machine.gpus_per_node
    nodes = max((mesh.first_node + mesh.nodes for mesh in meshes), default=0)
    busy = {
        (node, gpu)
        for mesh in meshes
        for node in range(mesh.first_node, mesh.first_node + mesh.nodes)
        for gpu in range(mesh.first_gpu, mesh.first_gpu + mesh.gpus_per_node)
    }
    return PoolDevices(name, machine.name, nodes, nodes * per_node, per_node, nodes * per_node - len(busy))


def _tokens(request: Request) -> float:
    context = request.work_context
    return context.prompts * context.samples_per_prompt * (context.prompt_tokens.mean + context.response_tokens.mean)


def _mfu(
    request: Request, graph: Graph, stages: tuple[PlannedStage, ...], meshes: Mapping[int, Mesh], choice: Choice
) -> float:
    """Model FLOPs of training without recompute / (dense BF16 peak x training GPUs x training seconds)."""
    flops = 0.0
    capacity = 0.0
    peak = request.machine.accelerator.peak_bf16.value
    first = {members[0].name for members in units(graph).values()}
    for stage in stages:
        if stage.op != Op.TRAIN:
            continue
        flops += stage_work_flops(request.works[stage.name])
        if stage.name not in first:
            continue  # the unit's seconds count once
        capacity += peak * meshes[choice.nodes[stage.name]].gpus * stage.seconds
    return flops / capacity if capacity else 0.0


def _transitions(graph: Graph, stages: tuple[PlannedStage, ...]) -> tuple[Transition, ...]:
    seconds = {stage.name: stage.seconds for stage in stages}
    return tuple(
        Transition(
            stage.name,
            next(edge.source for edge in graph.into(stage.name)),
            next(edge.target for edge in graph.out_of(stage.name)),
            seconds[stage.name],
        )
        for stage in graph.of_op(Op.SYNC)
    )


def _rewrites(graph: Graph, outcome: Outcome, winner: Attempt) -> tuple[PlannedRewrite, ...]:
    """Every rewrite that fired, with its gain over the best plan without it where such a plan was solved."""
    rows = []
    for rewrite in graph.rewrites:
        without = [
            float(attempt.solution.period)
            for attempt in outcome.attempts
            if attempt.solution.period is not None
            and rewrite.name not in {other.name for other in attempt.variant.graph.rewrites}
        ]
        assert winner.solution.period is not None, "a winner has a period"
        gain = 1 - float(winner.solution.period) / min(without) if without else None
        rows.append(PlannedRewrite(rewrite.name, rewrite.semantics, rewrite.where, gain))
    return tuple(rows)


def _status(outcome: Outcome, winner: Attempt, request: Request) -> str:
    if outcome.interrupted:
        return "interrupted"
    assert winner.cost is not None, "a winner has a cost"
    return "proven" if outcome.bound_cost >= (1 - request.tolerance) * winner.cost - winner.weight else "limit"


def _alternatives(outcome: Outcome, winner: Attempt) -> tuple[Alternative, ...]:
    """Every other attempt: its period, or the period below which it was proven to have no plan worth choosing."""
    rows = []
    for attempt in outcome.attempts:
        if attempt is winner:
            continue
        graph = attempt.variant.graph
        difference = {"placement": _placement(graph), "staleness": str(staleness_bound(graph))}
        difference |= _structure_difference(graph, winner.variant.graph)
        if graph.engine:
            difference["engine"] = graph.engine
        if attempt.weight != winner.weight:
            difference["nodes"] = str(attempt.variant.problem.cluster.nodes)
        if attempt.solution.period is not None:
            rows.append(Alternative(float(attempt.solution.period) / 1000.0, difference, "costs more"))
        elif attempt.cutoff_cost is not None:
            limit = attempt.cutoff_cost / attempt.weight / 1000.0
            why = "proven not to be worth choosing" if graph.rewrites != winner.variant.graph.rewrites else "costs more"
            rows.append(Alternative(limit, difference, why, proven_above=True))
    return tuple(rows)


def _structure_difference(graph: Graph, chosen: Graph) -> dict[str, str]:
    """Return which rewrites one graph has and the chosen one lacks, and the other way round."""
    own, other = ({r.name: r.where for r in g.rewrites if r.name != "place"} for g in (graph, chosen))
    names = {
        "with": [name for name, where in own.items() if other.get(name) != where],
        "without": [name for name in other if name not in own],
    }
    return {key: ", ".join(listed) for key, listed in names.items() if listed}


def _placement(graph: Graph) -> str:
    places = [rewrite.where for rewrite in graph.rewrites if rewrite.name == "place"]
    return places[-1] if places else graph.mode


def _assumptions(stages: tuple[PlannedStage, ...], request: Request) -> tuple[Assumption, ...]:
    """Every term whose figures are assumed, largest first, and the figures of the machine that are."""
    rows = [
        Assumption(f"{stage.name}: {name}", format_seconds(term.seconds), term.provenance, term.source)
        for stage in stages
        for name, term in stage.terms.items()
        if term.provenance == "assumed" and term.seconds >= 0.01 * stage.seconds > 0
    ]
    machines = [pool.machine for pool in request.pools] or [request.machine]
    named = dict.fromkeys(machine.accelerator for machine in machines)
    names = ("hbm_bytes", "gemm_sustained", "attention_forward_asymptote", "hbm_bandwidth")
    for accelerator, name in ((one, name) for one in named for name in names):
        figure = getattr(accelerator, name)
        rows.append(Assumption(f"{accelerator.name}: {name}", f"{figure.value:.4g}", figure.provenance, figure.source))
    return tuple(rows)


def _runs_far_ahead(request: Request) -> bool:
    changes = request.pipeline["allow"]["model_changes"]
    return "minibatches-by-completion" in changes and "reuse-rollout-logprobs" in changes


def _warnings(
    request: Request,
    memory_shortest: float,
    devices: Devices,
    stages: tuple[PlannedStage, ...],
    measurement: tuple[str, float, float] | None,
) -> tuple[str, ...]:
    lines = []
    if devices.nodes < request.nodes:
        reason = request.idle_reason or (
            "more would not shorten the step" if request.objective == "step_time" else "more would cost more"
        )
        lines.append(f"only {devices.nodes} of the {request.nodes} nodes are used: {reason}")
    if devices.idle_gpus:
        lines.append(f"{devices.idle_gpus} of {devices.gpus} allocated GPUs are idle")
    if memory_shortest < 0.99:
        lines.append(f"memory is tight: the plan fits with probability {memory_shortest:.3f}")
    if request.max_staleness > 1 and request.target.name == "verl" and not _runs_far_ahead(request):
        lines.append(
            "verl runs more than one step ahead in separate-async alone, which needs `allow.model_changes: "
            "[minibatches-by-completion, reuse-rollout-logprobs]`: max_staleness 2 and above add nothing without it"
        )
    if request.partial_rollout:
        lines.append(f"partial_rollout is allowed, but {request.target.name} has no mode for it here")
    if any("gh200" in name for name in (request.machine.name, *(pool.machine.name for pool in request.pools))):
        lines.append("no published RL run on GH200: step times are extrapolated, hence the wide interval")
    if measurement is not None:
        stage, before, after = measurement
        lines.append(
            f"timing `{stage}` once on this machine would narrow the interval of the step most: its ends would lie a "
            f"factor {after:.1f} apart, not {before:.1f}"
        )
    for role, model in request.pipeline["architectures"].items():
        lines += [f"{role}: not priced: {what}" for what in model.get("left_out", ())]
    lines += _foreign_vocabularies(request.pipeline["architectures"])
    gate = "the engine" if request.target.name == "native" else "launch/preflight.sh"
    if request.pipeline.get("data") is None:
        lines.append(f"no `data` in the pipeline: {gate} stops until the paths are filled in")
    for role, what in (("reward", "the reward model"), ("teacher", "the teacher")):
        served = any(stage.op == Op.FORWARD and stage.model == role for stage in stages)
        if served and request.target.name == "verl":
            lines.append(f"verl serves {what} with vLLM: its time is that of a sharded pass, its memory not planned")
    if any("lora" in work.engine_flags for work in request.works.values()):
        lines.append("rollout with adapters is priced from engines of early 2025: today's may be several times faster")
    if request.pipeline["training"].get("learning_rate") is None:
        lines.append(f"no `training.learning_rate`: {gate} stops until it is filled in")
    if any(model.get("weights") is None and model.get("like") is None for model in request.pipeline["models"].values()):
        lines.append(f"a model has no `weights`: {gate} stops until the path is filled in")
    return tuple(lines)


def _foreign_vocabularies(architectures: Mapping[str, Any]) -> list[str]:
    """Say which models have another vocabulary than the actor: they read its token ids, or have to translate them.

    Tables of one tokenizer are padded to sizes that differ by a few hundred rows.
    """
    own = architectures["actor"]["vocabulary"] if "actor" in architectures else 0
    return [
        f"{role}: its vocabulary of {model['vocabulary']} tokens is not the actor's of {own}: it must read the actor's "
        "token ids, unless the target translates them"
        for role, model in architectures.items()
        if own and abs(model["vocabulary"] - own) > 512
    ]
