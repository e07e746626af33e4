"""The order in which stages of successive steps run: what every rank follows, so that none waits for another for ever.

An *instance* is a stage in a step. Instances are ordered by their planned starts (start + step * period) as far as the
graph allows: an instance comes after every instance that it needs. Each rank runs those that its meshes hold, in this
one order; ranks of different meshes meet only where a value or weights pass between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from rpegc.ir.graph import Graph, Op
from rpegc.plan import Plan


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """A stage in a step."""

    step: int
    stage: str


def segments(first: int, total: int, every: int) -> Iterator[range]:
    """Yield the runs of steps between checkpoints: at multiples of `every` (0: never) and at the end."""
    while first < total:
        last = min(total, (first // every + 1) * every) if every else total
        yield range(first, last)
        first = last


def order(plan: Plan, steps: range) -> tuple[Instance, ...]:
    """Return every instance of some steps in the order of execution; what lies before the first step is done."""
    graph = plan.graph
    rank = {stage.name: place for place, stage in enumerate(graph.stages)}
    starts = {stage.name: stage.start_s for stage in plan.stages}
    waiting = {
        Instance(step, stage.name): sum(1 for edge in graph.into(stage.name) if step - edge.distance in steps)
        for step in steps
        for stage in graph.stages
    }

    def key(instance: Instance) -> tuple[float, int, int]:
        return starts.get(instance.stage, 0.0) + instance.step * plan.period_s, instance.step, rank[instance.stage]

    ready = [(*key(instance), instance) for instance, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[Instance] = []
    while ready:
        instance = heapq.heappop(ready)[-1]
        ordered.append(instance)
        for edge in graph.out_of(instance.stage):
            follower = Instance(instance.step + edge.distance, edge.target)
            if follower in waiting:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    heapq.heappush(ready, (*key(follower), follower))
    return tuple(ordered)


def weight_distance(graph: Graph, stage: str) -> int:
    """Return the steps between the update whose weights a stage uses and the stage; 0 for weights nobody trains."""
    for edge in graph.into(stage):
        if edge.carries_weights:
            if graph.stage(edge.source).op is Op.SYNC:
                return edge.distance + weight_distance(graph, edge.source)
            return edge.distance
    return 0


def version_used(graph: Graph, stage: str, step: int, first: int) -> int:
    """Return the version of weights that a stage uses in a step of a segment that began with version `first`.

    Version v is what the update of step v - 1 published; nothing of a segment starts before its first step.
    """
    return max(first, step - weight_distance(graph, stage) + 1)
