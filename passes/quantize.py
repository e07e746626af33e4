"""Fewer bits where the numbers need not be exact: generation, and the collectives of sharded training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rpegc.ir.graph import Graph, Op
from rpegc.rewrite import Context

PRECISION = "precision"
QUANTIZED = "quantized_collectives"


@dataclass(frozen=True, slots=True)
class QuantizeRollout:
    """Generate in FP8: engines hold weights in 8 bits and multiply in 8 bits.

    Law: another policy samples: its log-probs differ from those of the trained weights by what rounding adds, and an
    importance correction has to account for it. Fires only if the user allows it and the target's engines can.
    """

    name: ClassVar[str] = "quantize-rollout"
    semantics: ClassVar[str] = "model"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and the graph that generates in FP8."""
        accepted = context.capabilities.field_values.get((Op.GENERATE.value, PRECISION), ("bf16", "fp8"))
        engines = graph.of_op(Op.GENERATE)
        if not _allowed(self.name, context) or "fp8" not in accepted or not engines:
            return (graph,)
        changed = graph
        for stage in engines:
            changed = changed.replace_stage(stage.with_attributes(precision="fp8"))
        return (graph, changed.recorded(self.name, self.semantics, ", ".join(stage.name for stage in engines)))


@dataclass(frozen=True, slots=True)
class QuantizeCollectives:
    """Gather weights in INT8 and reduce gradients in INT4 (ZeRO++, arXiv 2306.10209: qwZ and qgZ).

    Law: another estimator: forward and backward passes use rounded weights, updates use rounded gradients. Fires on
    train stages whose every weight is trained; adapters move too few gradients to gain from it.
    """

    name: ClassVar[str] = "quantize-collectives"
    semantics: ClassVar[str] = "model"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and the graph with quantized collectives."""
        stages = [stage for stage in graph.of_op(Op.TRAIN) if context.models[stage.model].lora_rank == 0]
        if not _allowed(self.name, context) or not stages:
            return (graph,)
        changed = graph
        for stage in stages:
            changed = changed.replace_stage(stage.with_attributes(**{QUANTIZED: True}))
        return (graph, changed.recorded(self.name, self.semantics, ", ".join(stage.name for stage in stages)))


def _allowed(name: str, context: Context) -> bool:
    return name in context.capabilities.structures and name in context.allow.model_changes
