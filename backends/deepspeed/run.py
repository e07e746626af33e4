"""One run of TRL: all that its settings depend on, taken from a plan, or stood in for before there is a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backends.deepspeed.capabilities import COLOCATE, SERVER
from backends.deepspeed.request import Request, request_of
from backends.roles import Parts, parts_of, stand_ins
from rpegc.plan import Plan

SUPERCHIPS = ("gh200", "gb200", "isambard")
"""How machines of the catalogue start whose GPUs reach their host's memory by NVLink-C2C."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the settings are made from.

    `superchip`: GPU and host share a coherent link, so that SuperOffload pays.
    """

    seed: int
    mode: str
    superchip: bool
    request: Request
    parts: Parts

    @property
    def ranks(self) -> int:
        """Training processes."""
        return self.parts.actor.mesh.gpus

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a rank in one RL step, whatever the number of updates."""
        return max(1, self.request.sequences // (self.ranks * max(1, self.parts.actor.layout.micro_batch)))

    @property
    def accumulation(self) -> int:
        """Micro-batches of a rank in one optimizer update."""
        return max(1, self.micro_batches // self.request.minibatches)


def run_of(plan: Plan) -> Run:
    """Return the run of a plan; InputError for a stage that TRL has no place for."""
    return Run(
        seed=plan.seed,
        mode=plan.graph.mode or COLOCATE,
        superchip=plan.devices.hardware.startswith(SUPERCHIPS),
        request=request_of(plan),
        parts=parts_of(plan, "TRL"),
    )


def possible_runs(request: Request) -> Iterator[Run]:
    """Yield stand-ins for the runs that a pipeline may end in, with layouts of no meaning.

    Which keys a run decides, and every value that the pipeline states, do not depend on layouts.
    """
    for mode in (COLOCATE, SERVER):
        yield Run(seed=0, mode=mode, superchip=True, request=request, parts=stand_ins(request, critic=False))
