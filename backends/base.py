"""What all backends do alike when they emit: read the site, check, write."""

from __future__ import annotations

from abc import ABC, abstractmethod

from backends.site import Site, load_site
from rpegc.emit import Facts, Files
from rpegc.plan import Plan


class SiteBackend(ABC):
    """Half of `rpegc.emit.Backend`: `emit`, by way of `check` and `files`."""

    @abstractmethod
    def check(self, plan: Plan, facts: Facts | None = None) -> None:
        """Raise InputError for anything in the plan that the target would refuse or crash on."""

    @abstractmethod
    def files(self, plan: Plan, site: Site) -> Files:
        """Return the launch files of a checked plan for a site."""

    def emit(self, plan: Plan, site: str = "", facts: Facts | None = None) -> Files:
        """Return the launch files of a plan; raises InputError as `check` does, and for an unknown site."""
        profile = load_site(site or plan.pipeline["cluster"].get("site") or "generic")
        self.check(plan, facts)
        return self.files(plan, profile)
