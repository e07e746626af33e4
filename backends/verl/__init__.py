"""The verl backend: FSDP2 and Megatron engines, vLLM rollout, V1 sync trainer and the one-step-off trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.base import SiteBackend
from backends.site import Site
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


class VerlBackend(SiteBackend):
    """See `rpegc.emit.Backend`."""

    name = "verl"
    version = VERSION

    def capabilities(self, version: str = "", lora_rank: int = 0) -> Capabilities:
        """Return what verl's FSDP2 engine can express, the first of `engines`; InputError for another version."""
        return capabilities(version or VERSION, lora_rank)

    def engines(self, pipeline: Mapping[str, Any]) -> tuple[Capabilities, ...]:
        """Return the capabilities of each training engine that can carry a resolved pipeline out."""
        request = Request(pipeline)
        return tuple(
            capabilities(VERSION, request.lora_rank, engine, request.before_v1) for engine in possible_engines(request)
        )

    def ties_for(self, graph: Graph) -> tuple[Tie, ...]:
        """Return the stages that share one training engine."""
        return ties_for(graph)

    def check_pipeline(self, pipeline: Mapping[str, Any]) -> None:
        """Raise TargetRefusal for anything in a resolved pipeline that no plan on verl could carry out."""
        check_pipeline(pipeline)

    def check(self, plan: Plan, facts: Facts | None = None) -> None:
        """Raise InputError for anything in the plan that verl would refuse or crash on."""
        check_plan(plan, facts)

    def files(self, plan: Plan, site: Site) -> Files:
        """Return the launch files of a checked plan for a site."""
        return launch_files(plan, site)
