"""Let generation run ahead of training by a bounded number of versions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from passes.vocabulary import fired, is_synchronous, publications
from rpegc.ir.graph import Edge, Graph
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class BoundedAsynchrony:
    """Raise the distance of weights -> generate from 1 to 1 + k, for k = 1, 2 and the largest that is allowed.

    Law: samples are at most k versions old when training on them starts; nothing else moves. The optimizer's own
    edge, the weights of old log-probs and those of the critic's values keep distance 1. Only a k that some placement
    of the target supports is offered. A graph without old log-probs stays synchronous: that rewrite rests on it.
    """

    name: ClassVar[str] = "bounded-asynchrony"
    semantics: ClassVar[str] = "stale"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, then one for each k that is tried."""
        raised = publications(graph)
        if self.name not in context.capabilities.structures or not raised or not is_synchronous(graph):
            return (graph,)
        if fired(graph, "drop-old-logprobs"):
            return (graph,)
        ranges = [pattern.weight_distance for pattern in context.capabilities.placements]
        supported = [
            k for k in range(1, context.allow.max_staleness + 1) if any(low <= 1 + k <= high for low, high in ranges)
        ]
        published = {edge for edge, _ in raised}
        tried = dict.fromkeys((*supported[:2], *supported[-1:]))  # what lies between rarely differs from its neighbours
        return (graph, *(self._stale(graph, published, k) for k in tried))

    def _stale(self, graph: Graph, published: set[Edge], k: int) -> Graph:
        edges = tuple(replace(edge, distance=edge.distance + k) if edge in published else edge for edge in graph.edges)
        where = ", ".join(edge.target for edge in graph.edges if edge in published)
        return replace(graph, edges=edges).recorded(self.name, self.semantics, f"{where}: staleness at most {k}")
