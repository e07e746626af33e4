"""One run of verl: all that its settings depend on, taken from a plan, or stood in for before there is a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backends.roles import Parts, parts_of, stand_ins
from backends.verl.capabilities import ONE_STEP_OFF, SYNC
from backends.verl.request import Request, request_of
from rpegc.plan import Plan


@dataclass(frozen=True, slots=True)
class Run:
    """What the settings are made from.

    `bypass`: the engine's log-probs stand in for the recomputed ones. `nodes` counts those of the job.
    `cores_per_node` is 0 where the site does not say.
    """

    name: str
    seed: int
    mode: str
    bypass: bool
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
        bypass=rewritten(plan, "reuse-rollout-logprobs"),
        nodes=plan.devices.nodes,
        cores_per_node=cores_per_node,
        request=request_of(plan),
        parts=parts_of(plan),
    )


def mode_of(plan: Plan) -> str:
    """Return the launch mode in the words of the capabilities."""
    return plan.graph.mode.replace("_", "-") or SYNC


def rewritten(plan: Plan, name: str) -> bool:
    """Whether a rewrite of this name fired."""
    return any(rewrite.name == name for rewrite in plan.rewrites)


def possible_runs(request: Request) -> Iterator[Run]:
    """Yield stand-ins for the runs that a pipeline may end in: one for each launch mode, with layouts of no meaning.

    Which keys a run decides, and every value that the pipeline states, do not depend on layouts: so both are known
    before the search. A reward model gets a pool of its own, the case that decides more keys.
    """
    for mode in (SYNC, ONE_STEP_OFF) if request.may_run_one_step_off else (SYNC,):
        yield Run(
            name=str(request.get("name", "")),
            seed=0,
            mode=mode,
            bypass=False,
            nodes=1,
            cores_per_node=0,
            request=request,
            parts=stand_ins(request, request.needs_critic, request.distils),
        )
