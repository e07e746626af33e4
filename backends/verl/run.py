"""One run of verl: all that its settings depend on, taken from a plan, or stood in for before there is a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backends.roles import Parts, parts_of, stand_ins
from backends.verl.capabilities import FSDP, SYNC
from backends.verl.request import Request, request_of
from rpegc.ir.meaning import CARRIES
from rpegc.plan import Plan


@dataclass(frozen=True, slots=True)
class Run:
    """What the settings are made from.

    `bypass`: the engine's log-probs stand in for the recomputed ones. `staleness`: versions by which a sample may be
    older than the trainer. `nodes` counts those of the job.
    `cores_per_node` is 0 where the site does not say.
    """

    name: str
    seed: int
    mode: str
    engine: str
    bypass: bool
    staleness: int
    nodes: int
    cores_per_node: int
    request: Request
    parts: Parts


def run_of(plan: Plan, cores_per_node: int = 0) -> Run:
    """Return the run of a plan; InputError for a stage that verl has no place for."""
    return Run(
        name=plan.name,
        seed=plan.seed,
        mode=mode_of(plan),
        engine=engine_of(plan),
        bypass=rewritten(plan, "reuse-rollout-logprobs"),
        staleness=staleness_of(plan),
        nodes=plan.devices.nodes,
        cores_per_node=cores_per_node,
        request=request_of(plan),
        parts=parts_of(plan),
    )


def mode_of(plan: Plan) -> str:
    """Return the launch mode in the words of the capabilities."""
    return plan.graph.mode.replace("_", "-") or SYNC


def engine_of(plan: Plan) -> str:
    """Return the training engine in the words of the capabilities."""
    return plan.graph.engine or FSDP


def staleness_of(plan: Plan) -> int:
    """Return the versions by which a sample may be older than the trainer: those it waits, and those it is carried."""
    rollout = next((stage for stage in plan.graph.stages if stage.op == "generate"), None)
    distances = [0]
    for edge in plan.graph.into(rollout.name) if rollout else ():
        if edge.value.startswith("weights"):
            synced = plan.graph.stage(edge.source).op == "sync"
            before = sum(hop.distance for hop in plan.graph.into(edge.source)) if synced else 0
            distances.append(edge.distance + before - 1)
    return max(distances) + carried_of(plan)


def carried_of(plan: Plan) -> int:
    """Return to how many later steps a sample may carry over."""
    return max((int(s.attribute(CARRIES, 0)) for s in plan.graph.stages if s.op == "generate"), default=0)


def rewritten(plan: Plan, name: str) -> bool:
    """Whether a rewrite of this name fired."""
    return any(rewrite.name == name for rewrite in plan.rewrites)


def possible_runs(request: Request, engine: str) -> Iterator[Run]:
    """Yield stand-ins for the runs of an engine that a pipeline may end in: one for each launch mode.

    Their layouts have no meaning. Which keys a run decides, and every value that the pipeline states, do not depend on
    layouts: so both are known before the search. A reward model gets a pool of its own, the case that decides more
    keys.
    """
    for mode in (SYNC, *request.other_modes):
        yield Run(
            name=str(request.get("name", "")),
            seed=0,
            mode=mode,
            engine=engine,
            bypass=False,
            staleness=1,
            nodes=1,
            cores_per_node=0,
            request=request,
            parts=stand_ins(request, request.needs_critic, request.distils),
        )
