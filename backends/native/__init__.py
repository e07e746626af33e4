"""The native backend: plans that `rpegc.runtime` executes with PyTorch's own parts, on GPUs or on CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.base import SiteBackend
from backends.native.capabilities import VERSION, capabilities, ties_for
from backends.native.checks import check_pipeline, check_plan
from backends.native.launch import launch_files
from backends.site import Site
from rpegc.emit import Facts, Files
from rpegc.plan import Plan
from rpegc.target import Capabilities, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph


class NativeBackend(SiteBackend):
    """See `rpegc.emit.Backend`."""

    name = "native"
    version = VERSION

    def capabilities(self, version: str = "", lora_rank: int = 0) -> Capabilities:
        """Return what the native engine can execute; InputError for another version than this one."""
        return capabilities(version or VERSION)

    def engines(self, pipeline: Mapping[str, Any]) -> tuple[Capabilities, ...]:
        """Return the one engine's capabilities."""
        return (capabilities(VERSION),)

    def ties_for(self, graph: Graph) -> tuple[Tie, ...]:
        """Return the stages that share one model in memory."""
        return ties_for(graph)

    def check_pipeline(self, pipeline: Mapping[str, Any]) -> None:
        """Raise TargetRefusal for anything in a resolved pipeline that the engine cannot run in any plan."""
        check_pipeline(pipeline)

    def check(self, plan: Plan, facts: Facts | None = None) -> None:
        """Raise InputError for anything in the plan that the engine would refuse."""
        check_plan(plan, facts)

    def files(self, plan: Plan, site: Site) -> Files:
        """Return the launch files of a checked plan for a site."""
        return launch_files(plan, site)
