"""Discrete-event execution of a bound plan: every stage of every step, with response lengths drawn anew each step.

A stage of a step starts as soon as its inputs (edges with their distances), its mesh or the host's cores (in the plan's
cyclic order) and the same stage of the step before allow. With the planned seconds this repeats the plan's period; with
drawn lengths it says what steps cost that differ, since the mean of a maximum is not the maximum of means.

How drawn lengths change a stage's seconds, term by term (an approximation: a stage is not priced again):

* `tail` of a `generate` stage follows the longest response, less the length that starts the tail; `prefill` follows the
  mean prompt, every other term of the stage the mean response.
* terms of `train` and `forward` stages follow the step's tokens, but for what is done once however many there are.
* functions, weight syncs and stages with lengths of their own keep their seconds.

So the spread is that of the lengths alone: attention grows linearly instead of with the square, micro-batches are not
packed again, functions, network and kernels do not vary, and the plan's 80 % interval (how wrong prices may be) is not
in it. With many more samples than an engine has room for, the last to finish need not be the longest: there `tail`
varies too much. Lengths of one prompt correlate here as in the prices of generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

import numpy as np

from rpegc.errors import InputError
from rpegc.ir.fusion import contracted, unit_names, units
from rpegc.ir.graph import Edge, Op
from rpegc.ir.meaning import CARRIES
from rpegc.ir.period import completion
from rpegc.plan import Plan, PlannedStage
from rpegc.simulate.draws import Draws
from rpegc.target import Mesh

HOST = ""
"""The mesh of a span on host cores, as in the plan."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stage of one step on one mesh (`HOST` for functions; a sync has a span on each mesh that it occupies)."""

    stage: str
    mesh: str
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A simulated run. Figures are those of the `steps` steps after `warm_up`; spans are of all simulated steps.

    `p10_s` and `p90_s` are quantiles of the seconds between the ends of successive steps, `mean_s` their mean.
    `staleness` counts generated batches by the versions that training had moved on since their weights;
    `utilisation` is the share of time in which a mesh is busy, `critical_share` that which a stage has of the chain of
    waits that leads to the end of the last step.
    """

    warm_up: int
    steps: int
    mean_s: float
    p10_s: float
    p90_s: float
    staleness: Mapping[int, int]
    utilisation: Mapping[str, float]
    critical_share: Mapping[str, float]
    spans: tuple[Span, ...]


def simulate(plan: Plan, steps: int = 20, warm_up: int = 5, seed: int = 1, sampled: bool = True) -> Trace:
    """Execute `warm_up` + `steps` steps of a plan; without `sampled` every step takes the planned seconds.

    A step's lengths depend on `seed` and the step's number alone. Raises InputError for a plan whose starts contradict
    its graph, ValueError unless steps >= 1 and warm_up >= 0.
    """
    if steps < 1 or warm_up < 0:
        raise ValueError(f"steps >= 1 and warm_up >= 0 must hold: {steps} and {warm_up} given")
    draw = Draws(plan, seed) if sampled else None

    def seconds(members: tuple[PlannedStage, ...], step: int) -> float:
        planned = members[0].seconds
        if draw is None or step < 0:  # before the first step everything went as planned
            return planned
        return max(0.0, planned + sum(draw.change_s(stage, step) for stage in members))

    run = _Run(_Order(plan), seconds)
    run.simulate(warm_up + steps)
    return _measured(plan, run, warm_up, steps)


# --- order: who waits for whom ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wait:
    """A stage of round r waits for `source` of round r - `lag`; `chunks` parts, if streamed."""

    source: str
    lag: int
    chunks: int = 1


class _Order:
    """A plan's waits, by unit: a stage of its own, or the members of a composite, which start and end together.

    In round r each unit is at the step whose planned start lies in period r of the plan. Whole milliseconds, as the
    plan was solved in: so its order is read off exactly.
    """

    def __init__(self, plan: Plan) -> None:
        self.members = {
            unit: tuple(plan.stage(member.name) for member in members) for unit, members in units(plan.graph).items()
        }
        self.unit = unit_names(plan.graph)
        self.occupied = {unit: _occupied(plan, members[0]) for unit, members in self.members.items()}
        self.period_ms = max(1, math.ceil(round(plan.period_s * 1000.0, 6)))
        self.start_ms = {unit: round(members[0].start_s * 1000.0) for unit, members in self.members.items()}
        self.offset = {name: start // self.period_ms for name, start in self.start_ms.items()}
        self.waits: dict[str, list[_Wait]] = {unit: [] for unit in self.members}
        for edge in contracted(plan.graph).edges:
            self._add(edge.target, edge.source, edge.distance, edge.chunks)
        for first, second in combinations(self.members, 2):
            if self._exclusive(first, second):
                self._add_exclusion(first, second)
        for name in self.waits:
            self._add(name, name, 1)
        same_round = {name: [w.source for w in waits if w.lag == 0] for name, waits in self.waits.items()}
        try:
            self.sequence = tuple(TopologicalSorter(same_round).static_order())
        except CycleError as error:
            circle = ", ".join(dict.fromkeys(error.args[1]))
            raise InputError(f"the plan's starts contradict its graph: {circle} wait for each other") from None

    def _add(self, waiting: str, source: str, distance: int, chunks: int = 1) -> None:
        lag = self.offset[waiting] - self.offset[source] + distance
        if lag < 0:
            raise InputError(f"the plan's starts contradict its graph: {waiting} starts before {source} has ended")
        self.waits[waiting].append(_Wait(source, lag, chunks))

    def _add_exclusion(self, first: str, second: str) -> None:
        """Keep the planned order: the second runs after the first of step i + k and before that of step i + k + 1."""
        k = (self.start_ms[second] - self.start_ms[first]) // self.period_ms
        self._add(second, first, -k)
        self._add(first, second, k + 1)

    def _exclusive(self, first: str, second: str) -> bool:
        one, other = self.members[first][0], self.members[second][0]
        if not (_milliseconds(one) and _milliseconds(other)):
            return False  # a stage without duration occupies nothing
        if one.op == Op.FUNCTION and other.op == Op.FUNCTION:
            return True  # functions share the host's cores
        return any(a.overlaps(b) for a in self.occupied[first] for b in self.occupied[second])


def _milliseconds(stage: PlannedStage) -> int:
    return math.ceil(stage.seconds * 1000.0 - 1e-6)


def _occupied(plan: Plan, stage: PlannedStage) -> tuple[Mesh, ...]:
    """Return the meshes that a stage occupies: its own; both ends' of a sync; none of a function."""
    if stage.mesh:
        return (plan.mesh(stage.mesh),)
    if stage.op != Op.SYNC:
        return ()
    ends = [edge.source for edge in plan.graph.into(stage.name)] + [e.target for e in plan.graph.out_of(stage.name)]
    names = dict.fromkeys(plan.stage(end).mesh for end in ends)
    return tuple(plan.mesh(name) for name in names if name)


# --- run: when everything happens -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Event:
    """One stage of one round: when, and the wait that ended last (None if none did)."""

    start_s: float
    end_s: float
    waited_for: tuple[str, int] | None


class _Run:
    """All events, round by round. Rounds before the first are as planned."""

    def __init__(self, order: _Order, seconds: Callable[[tuple[PlannedStage, ...], int], float]) -> None:
        self.order = order
        self._stages = order.members
        self._seconds = seconds
        self._events: dict[str, list[_Event]] = {name: [] for name in self._stages}

    def simulate(self, steps: int) -> None:
        """Run until `steps` steps are over, and on as long as stages of later steps run beside the last."""
        for round_number in range(steps + max(self.order.offset.values()) + 2):
            for name in self.order.sequence:
                self._events[name].append(self._next(name, round_number))

    def _next(self, name: str, round_number: int) -> _Event:
        own = self._seconds(self._stages[name], round_number - self.order.offset[name])
        start, waited_for = -math.inf, None
        for wait in self.order.waits[name]:
            source = self._event(wait.source, round_number - wait.lag)
            ready = source.end_s
            if wait.chunks > 1:
                ready = self._streamed(wait, source, own)
            if ready > start:
                start, waited_for = ready, (wait.source, round_number - wait.lag)
        return _Event(start, start + own, waited_for)

    def _streamed(self, wait: _Wait, source: _Event, own: float) -> float:
        """Return when a stage may start whose j-th part needs the j-th chunk of its source.

        Chunks are done as planned, stretched as the source's whole duration is.
        """
        planned = self._stages[wait.source][0]
        length = source.end_s - source.start_s
        done = completion(Fraction(planned.seconds), wait.chunks, planned.completion or None)
        stretch = length / planned.seconds if planned.seconds else 0.0
        waits = (float(part) * stretch - j * own / wait.chunks for j, part in enumerate(done))
        return source.start_s + max(waits)

    def _event(self, name: str, round_number: int) -> _Event:
        if round_number >= 0:
            return self._events[name][round_number]
        planned_ms = self.order.start_ms[name] + (round_number - self.order.offset[name]) * self.order.period_ms
        return _Event(planned_ms / 1000.0, planned_ms / 1000.0 + self._stages[name][0].seconds, None)

    def at_step(self, name: str, step: int) -> _Event:
        """Return the event of a stage (or a unit) of a step."""
        unit = self.order.unit.get(name, name)
        return self._event(unit, step + self.order.offset[unit])

    def step_end_s(self, step: int) -> float:
        """Return when the last stage of a step is over."""
        return max(self.at_step(name, step).end_s for name in self._stages)

    def events(self) -> Iterable[tuple[str, int, _Event]]:
        """Yield unit, step and event of all steps from the first on."""
        for name, events in self._events.items():
            for round_number, event in enumerate(events):
                if round_number >= self.order.offset[name]:
                    yield name, round_number - self.order.offset[name], event

    def critical_path(self, step: int, since_s: float) -> dict[str, float]:
        """Return the seconds of each stage on the chain of waits that ends with a step, back to `since_s`."""
        name = max(self._stages, key=lambda stage: self.at_step(stage, step).end_s)
        event = self.at_step(name, step)
        until, path = event.end_s, dict.fromkeys(self._stages, 0.0)
        while until > since_s:
            path[name] += until - max(event.start_s, since_s)
            until = event.start_s
            if event.waited_for is None:
                break
            name, round_number = event.waited_for
            event = self._event(name, round_number)
        return path


# --- figures ----------------------------------------------------------------------------------------------------------


def _measured(plan: Plan, run: _Run, warm_up: int, steps: int) -> Trace:
    ends = np.array([run.step_end_s(step) for step in range(warm_up - 1, warm_up + steps)])
    window = float(ends[0]), float(ends[-1])
    length = window[1] - window[0]
    p10, p90 = np.quantile(np.diff(ends), (0.1, 0.9))
    path = run.critical_path(warm_up + steps - 1, window[0])
    staleness = [
        _staleness(run, generate.name, edge, step, int(generate.attribute(CARRIES, 0)))
        for generate in plan.graph.of_op(Op.GENERATE)
        for edge in plan.graph.into(generate.name)
        if edge.carries_weights
        for step in range(warm_up, warm_up + steps)
    ]
    return Trace(
        warm_up=warm_up,
        steps=steps,
        mean_s=length / steps,
        p10_s=float(p10),
        p90_s=float(p90),
        staleness={versions: staleness.count(versions) for versions in sorted(set(staleness))},
        utilisation={mesh.name: _busy_s(run, mesh, window) / length if length else 0.0 for mesh in plan.meshes},
        critical_share={name: seconds / length if length else 0.0 for name, seconds in path.items()},
        spans=_spans(run),
    )


def _staleness(run: _Run, generate: str, weights: Edge, step: int, carries: int) -> int:
    """Return by how many updates the weights of a step's oldest tokens are behind those it is trained from.

    A sample that was carried over holds tokens of one version more for each time.
    """
    start = run.at_step(generate, step).start_s
    published = step - 1
    while run.at_step(weights.source, published).end_s > start:
        published -= 1
    return step - 1 - published + carries


def _busy_s(run: _Run, mesh: Mesh, window: tuple[float, float]) -> float:
    """Return the seconds of a window in which some stage runs on a mesh or on one that shares GPUs with it."""
    spans = sorted(
        (max(event.start_s, window[0]), min(event.end_s, window[1]))
        for unit, _, event in run.events()
        if any(mesh.overlaps(other) for other in run.order.occupied[unit])
    )
    busy, until = 0.0, window[0]
    for start, end in spans:
        if end > until:
            busy += end - max(start, until)
            until = end
    return busy


def _spans(run: _Run) -> tuple[Span, ...]:
    spans = [
        Span(stage.name, mesh, step, event.start_s, event.end_s)
        for unit, step, event in run.events()
        for stage in run.order.members[unit]
        for mesh in [mesh.name for mesh in run.order.occupied[unit]] or [HOST]
    ]
    return tuple(sorted(spans, key=lambda span: (span.start_s, span.step, span.stage, span.mesh)))
