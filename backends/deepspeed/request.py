"""What the resolved pipeline asks of TRL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from backends.request import PipelineRequest
from rpegc.plan import Plan


@dataclass(frozen=True, slots=True)
class Request(PipelineRequest):
    """The resolved pipeline behind a plan, in TRL's words."""

    target: ClassVar[str] = "TRL"

    @property
    def beta(self) -> float:
        """The coefficient of the KL term in the loss."""
        return float(self.get("training.kl.coefficient", 0.0))

    @property
    def total_updates(self) -> int | None:
        """Optimizer updates of the run; None while `training.total_steps` is missing."""
        steps = self.get("training.total_steps")
        return None if steps is None else int(steps) * self.updates

    @property
    def reward_function(self) -> tuple[str, str] | None:
        """File and name of the reward function; None for TRL's own verifier."""
        path, colon, name = str(self.get("reward.function") or "").rpartition(":")
        return (path, name) if colon else None


def request_of(plan: Plan) -> Request:
    """Return the request behind a plan."""
    return Request(plan.pipeline)
