"""The deepspeed backend: TRL's GRPOTrainer on DeepSpeed, started by torch.distributed.run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.base import SiteBackend
from backends.deepspeed.capabilities import VERSION, capabilities, ties_for
from backends.deepspeed.checks import check_plan
from backends.deepspeed.launch import launch_files
from backends.deepspeed.pipeline_checks import check_pipeline
from backends.site import Site
from rpegc.emit import Facts, Files
from rpegc.plan import Plan
from rpegc.target import Capabilities, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph


class TrlBackend(SiteBackend):
    """See `rpegc.emit.Backend`."""

    name = "deepspeed"
    version = VERSION

    def capabilities(self, version: str = "", lora_rank: int = 0) -> Capabilities:
        """Return what TRL on DeepSpeed can express; InputError for another version than the pinned one."""
        return capabilities(version or VERSION)

    def engines(self, pipeline: Mapping[str, Any]) -> tuple[Capabilities, ...]:
        """Return the capabilities of the one training engine."""
        return (capabilities(VERSION),)

    def ties_for(self, graph: Graph) -> tuple[Tie, ...]:
        """Return the stages that share one training engine, or one micro-batch."""
        return ties_for(graph)

    def check_pipeline(self, pipeline: Mapping[str, Any]) -> None:
        """Raise TargetRefusal for anything in a resolved pipeline that no plan on TRL could carry out."""
        check_pipeline(pipeline)

    def check(self, plan: Plan, facts: Facts | None = None) -> None:
        """Raise InputError for anything in the plan that TRL, DeepSpeed or vLLM would refuse or crash on."""
        check_plan(plan, facts)

    def files(self, plan: Plan, site: Site) -> Files:
        """Return the launch files of a checked plan for a site."""
        return launch_files(plan, site)
