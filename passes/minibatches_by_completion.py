"""Let updates take samples as they complete, whichever step they were asked for in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from passes.vocabulary import fired, is_synchronous
from rpegc.ir.graph import Graph, Op
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class MinibatchesByCompletion:
    """Form each minibatch of the groups that are done first, where generation runs ahead of training.

    Law: every group is trained on once, and at most as many versions late as the graph's distances allow; but which
    update a group belongs to follows from how long its samples are, and a group may span versions: weights reach the
    engines while they generate. Another selection of samples for each update. Nothing moves in the graph; it fires
    only on an asynchronous one, and only if the user allows it.
    """

    name: ClassVar[str] = "minibatches-by-completion"
    semantics: ClassVar[str] = "model"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and beside it the graph whose updates follow completion."""
        if self.name not in context.capabilities.structures or self.name not in context.allow.model_changes:
            return (graph,)
        trained = ", ".join(stage.name for stage in graph.of_op(Op.TRAIN))
        if is_synchronous(graph) or not trained or fired(graph, self.name):
            return (graph,)
        return (graph, graph.recorded(self.name, self.semantics, trained))
