"""With adapters, the reference is the actor without its adapter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from passes.vocabulary import forbidden_somewhere
from rpegc.ir.graph import Graph, Op, Stage
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class ShareBaseReference:
    """Run the forward stages of a frozen copy of a role on that role's own weights, its adapter off.

    Law: LoRA (arXiv 2106.09685) leaves the base weights as they were, so actor minus adapter is the model that the
    reference was copied from. Fires where a role that nobody trains is `like` a role that is trained with an adapter.
    The stage needs no weights from training: what it uses never changes.
    """

    name: ClassVar[str] = "share-base-reference"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the sharing graph; beside it the old one, if some placement of the target needs that."""
        if self.name not in context.capabilities.structures:
            return (graph,)
        shared, where = graph, []
        for stage in graph.of_op(Op.FORWARD):
            base = _base_of(stage, graph, context)
            if base:
                shared = shared.replace_stage(replace(stage.with_attributes(adapter="off"), model=base))
                where.append(f"{stage.name} on {base}")
        if not where:
            return (graph,)
        shared = shared.recorded(self.name, self.semantics, ", ".join(where))
        return (graph, shared) if forbidden_somewhere(self.name, context) else (shared,)


def _base_of(stage: Stage, graph: Graph, context: Context) -> str:
    """Return the adapted role whose base weights a stage's own are, or ""."""
    trained = {train.model for train in graph.of_op(Op.TRAIN)}
    like = context.models[stage.model].like
    if stage.model in trained or like not in trained or context.models[like].lora_rank == 0:
        return ""
    return like
