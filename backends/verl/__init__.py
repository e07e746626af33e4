"""The verl backend: FSDP2 training engine, vLLM rollout, V1 sync trainer and the one-step-off trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.base import SiteBackend
from backends.site import Site
from backends.verl.capabilities import VERSION, capabilities, ties_for
from backends.verl.checks import check_plan
from backends.verl.launch import launch_files
from backends.verl.pipeline_checks import check_pipeline
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
        """Return what verl's FSDP2 engine can express; InputError for another version than the pinned one."""
        return capabilities(version or VERSION, lora_rank)

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
