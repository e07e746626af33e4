"""The flavour `openrlhf` of the target deepspeed: command lines for OpenRLHF, which runs DeepSpeed and vLLM on Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.base import SiteBackend
from backends.openrlhf.capabilities import DEEPSPEED_VERSION, capabilities, ties_for
from backends.openrlhf.checks import check_pipeline, check_plan
from backends.openrlhf.launch import launch_files
from backends.site import Site
from rpegc.emit import Facts, Files
from rpegc.plan import Plan
from rpegc.target import Capabilities, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph


class OpenRlhfBackend(SiteBackend):
    """See `rpegc.emit.Backend`."""

    name = "deepspeed"
    version = DEEPSPEED_VERSION

    def capabilities(self, version: str = "", lora_rank: int = 0) -> Capabilities:
        """Return what OpenRLHF can express; InputError for another DeepSpeed than the one it pins."""
        return capabilities(version or DEEPSPEED_VERSION)

    def engines(self, pipeline: Mapping[str, Any]) -> tuple[Capabilities, ...]:
        """Return the capabilities of the one training engine."""
        return (capabilities(DEEPSPEED_VERSION),)

    def ties_for(self, graph: Graph) -> tuple[Tie, ...]:
        """Return the stages that share one setting of OpenRLHF."""
        return ties_for(graph)

    def check_pipeline(self, pipeline: Mapping[str, Any]) -> None:
        """Raise TargetRefusal for anything in a resolved pipeline that no plan on OpenRLHF could carry out."""
        check_pipeline(pipeline)

    def check(self, plan: Plan, facts: Facts | None = None) -> None:
        """Raise InputError for anything in the plan that OpenRLHF would refuse or crash on."""
        check_plan(plan, facts)

    def files(self, plan: Plan, site: Site) -> Files:
        """Return the launch files of a checked plan for a site."""
        return launch_files(plan, site)
