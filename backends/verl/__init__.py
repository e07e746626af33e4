"""The verl backend: FSDP2 and Megatron engines, vLLM rollout, V1 sync trainer and the one-step-off trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.site import load_site
from backends.verl.capabilities import VERSION, capabilities, ties_for
from backends.verl.checks import check_plan
from backends.verl.engines import possible_engines
from backends.verl.launch import launch_files
from backends.verl.pipeline_checks import check_pipeline
from backends.verl.request import Request
from rpegc.emit import Facts, Files
from rpegc.plan import Plan
from rpegc.target import Capabilities, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph


class VerlBackend:
    """See `rpegc.emit.Backend`."""

    name = "verl"
    version = VERSION

    def capabilities(self, version: str = "", lora_rank: int = 0) -> Capabilities:
        """Return what verl's FSDP2 engine can express, the first of `engines`; InputError for another version."""
        return capabilities(version or VERSION, lora_rank)

    def engines(self, pipeline: Mapping[str, Any]) -> tuple[Capabilities, ...]:
        """Return the capabilities of each training engine that can carry a resolved pipeline out."""
        request = Request(pipeline)
        return tuple(capabilities(VERSION, request.lora_rank, engine) for engine in possible_engines(request))

    def ties_for(self, graph: Graph) -> tuple[Tie, ...]:
        """Return the stages that share one training engine."""
        return ties_for(graph)

    def check_pipeline(self, pipeline: Mapping[str, Any]) -> None:
        """Raise TargetRefusal for anything in a resolved pipeline that no plan on verl could carry out."""
        check_pipeline(pipeline)

    def check(self, plan: Plan, facts: Facts | None = None) -> None:
        """Raise InputError for anything in the plan that verl would refuse or crash on."""
        check_plan(plan, facts)

    def emit(self, plan: Plan, site: str = "", facts: Facts | None = None) -> Files:
        """Return the launch files of a plan; raises InputError as `check` does, and for an unknown site."""
        profile = load_site(site or plan.pipeline["cluster"].get("site") or "generic")
        check_plan(plan, facts)
        return launch_files(plan, profile)
