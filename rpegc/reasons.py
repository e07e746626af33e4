"""Answers about plans, as data: differences, explanations, verdicts, sweeps, odds. Reports render them.

Seconds, bytes and counts; no text that depends on the terminal.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rpegc.plan import Plan


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of two plans: seconds, bytes, a share or a count (`unit`); None where a plan has none."""

    name: str
    unit: str
    first: float | None
    second: float | None

    @property
    def change(self) -> float:
        """Second less first; a figure that one plan lacks counts as 0 there."""
        return (self.second or 0.0) - (self.first or 0.0)


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision that two plans take differently: where, what, and each plan's value ("" where it has none)."""

    where: str
    what: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Two plans beside each other.

    `decisions` lists what was chosen differently; `terms` every term of time ("stage.term", exposed seconds), the
    largest change first; `memory` the fullest GPU of each stage's phase; `figures` period, cost and rates.
    """

    first: str
    second: str
    figures: tuple[Figure, ...]
    decisions: tuple[Decision, ...]
    stages: tuple[Figure, ...]
    terms: tuple[Figure, ...]
    memory: tuple[Figure, ...]

    @property
    def same(self) -> bool:
        """Whether both plans take the same decisions at the same price."""
        return not self.decisions and not any(figure.change for figure in self.figures)


@dataclass(frozen=True, slots=True)
class Share:
    """A stage's part of the period: its seconds, whether it lies on the cycle that forces the period, its lever.

    `lever` is the relative gain in period for each per cent that the stage gets faster, at the planned order.
    """

    stage: str
    seconds: float
    on_cycle: bool
    lever: float


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What forces the period, and what would if its largest stage took no time."""

    cycle: tuple[str, ...]
    period_s: float
    largest: str
    next_cycle: tuple[str, ...]
    next_period_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """A mesh's share of the period in which some stage runs on it."""

    mesh: str
    gpus: int
    busy_s: float
    share: float
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageWorkDepth:
    """Work (FLOP) and depth (dependent operations) of a stage, and the FLOP/s that a GPU of its mesh sustains."""

    stage: str
    work_flop: float
    depth: float
    flop_per_s_per_gpu: float | None


@dataclass(frozen=True, slots=True)
class Guideline:
    """A statement of [PF] that applies to this plan, with the plan's own numbers; whether the plan goes along."""

    statement: str
    evidence: str
    followed: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a plan takes the time that it takes."""

    name: str
    period_s: float
    lower_bound_s: float
    bottleneck: Bottleneck
    loads: tuple[Load, ...]
    shares: tuple[Share, ...]
    work_depth: tuple[StageWorkDepth, ...]
    guidelines: tuple[Guideline, ...]

    def document(self) -> dict[str, Any]:
        """Return the explanation as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a plan under a condition.

    `kind` is "plan" where there is one, else what forbids it: "rule", "memory", "tie", "capability", "input".
    `notes` say what else had to be allowed, or why a better plan was not chosen.
    """

    condition: str
    kind: str
    reason: str
    plan: Plan | None = None
    difference: Difference | None = None
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON types, without the plan itself."""
        return {
            "condition": self.condition,
            "kind": self.kind,
            "reason": self.reason,
            "notes": list(self.notes),
            "difference": asdict(self.difference) if self.difference else None,
        }


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One point of a sweep: its values by axis, and its plan's figures, or why there is none.

    `status` is "proven" or "limit" (the search's own), "does not fit", "refused" or "interrupted". `front` says that
    no other point of the same workload is at least as good in step time, GPU-hours, money and staleness and better in
    one.
    """

    values: dict[str, str]
    status: str
    reason: str = ""
    period_s: float | None = None
    interval_s: tuple[float, float] | None = None
    lower_bound_s: float | None = None
    gpu_hours: float | None = None
    usd: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    gpus: int | None = None
    idle_gpus: int | None = None
    staleness: int | None = None
    mode: str = ""
    front: bool = False

    @property
    def costs(self) -> tuple[float, ...] | None:
        """Step time, GPU-hours, money (0 where unknown) and staleness; None without a plan."""
        if self.period_s is None or self.gpu_hours is None:
            return None
        return self.period_s, self.gpu_hours, self.usd or 0.0, float(self.staleness or 0)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A table of points: the axes that were varied, in order, with their values, and a row a point."""

    name: str
    axes: dict[str, tuple[str, ...]]
    rows: tuple[SweepRow, ...]

    @property
    def interrupted(self) -> bool:
        """Whether some points were not tried."""
        return any(row.status == "interrupted" for row in self.rows)

    def document(self) -> dict[str, Any]:
        """Return the table as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Odds:
    """A plan among its alternatives: its expected period under the intervals, and how often the chosen plan is faster.

    `beaten` is the probability that the chosen plan has the shorter period; None for the chosen plan itself.
    """

    plan: Plan
    expected_s: float
    low_s: float
    high_s: float
    beaten: float | None
