"""What an optimizer update learns from, apart from when and where it is computed.

Two graphs mean the same if every train stage reads the same values: computed by the same models from the same
versions of weights, of the same samples of the same step, in the same membership. Places, layouts, chunks, fusion,
syncs and the split of one generation over two engines do not count. This is the check behind the class `exact`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rpegc.ir.graph import WEIGHTS, Graph, Op, Stage

Meaning = tuple[Any, ...]

SAMPLES = "samples"
"""Attribute of a generate stage: which part of the step's samples it finishes ("head", "tail"; absent: all)."""
TAIL_SHARE = "tail_share"
"""Attribute beside `samples`: the share of the samples, the longest, that is the tail."""
CARRIES = "carries"
"""Attribute of a generate stage: to how many later steps an unfinished sample may carry over."""
UNFINISHED = "unfinished"
"""The value of an edge between engines (or an engine and itself, a step later): samples that are not done."""
COMPLETION_ORDER = "completion_order"
"""Attribute of a train stage whose updates take samples as they complete: their membership is not the synchronous."""

_SCHEDULE = ("fused", SAMPLES, TAIL_SHARE)
"""Attributes that say when and where, not what."""


def updates(graph: Graph) -> dict[str, Meaning]:
    """Return what the updates of each trained role read, by role."""
    return {stage.model: _stage(graph, stage) for stage in graph.of_op(Op.TRAIN)}


def staleness_bound(graph: Graph) -> int:
    """Return by how many versions the oldest token of a sample may lag behind the trainer.

    That is what the weights into the engine are late, and one more for each step that a sample may carry over.
    """
    return max((_lag(graph, stage) + _carries(stage) for stage in graph.of_op(Op.GENERATE)), default=0)


def weight_distance(graph: Graph, stage: Stage) -> int:
    """Return the steps between the update that made a stage's weights and the stage; 0 if its weights never change."""
    for edge in graph.into(stage.name):
        if edge.carries_weights:
            source = graph.stage(edge.source)
            before = graph.into(source.name) if source.op is Op.SYNC else ()
            return edge.distance + sum(hop.distance for hop in before)
    return 0


def _lag(graph: Graph, stage: Stage) -> int:
    return max(0, weight_distance(graph, stage) - 1)


def _carries(stage: Stage) -> int:
    return int(stage.attribute(CARRIES, 0))


def _stage(graph: Graph, stage: Stage) -> Meaning:
    kept = tuple(pair for pair in stage.attributes if pair[0] not in _SCHEDULE)
    name = stage.name if stage.op is Op.FUNCTION else ""
    return (stage.op.value, name, stage.model, weight_distance(graph, stage), kept, frozenset(_read(graph, stage)))


def _read(graph: Graph, stage: Stage) -> Iterator[Meaning]:
    """Yield (value, distance, maker) of all that a stage reads; head and tail of one generation are the whole of it."""
    parts: dict[Meaning, set[str]] = {}
    for edge in graph.into(stage.name):
        if edge.value in (WEIGHTS, UNFINISHED) or graph.stage(edge.source).op is Op.TRAIN:
            continue
        maker = graph.stage(edge.source)
        meaning = (edge.value, edge.distance, _stage(graph, maker))
        parts.setdefault(meaning, set()).add(str(maker.attribute(SAMPLES, "all")))
    for meaning, made in parts.items():
        yield (*meaning, "all" if made == {"head", "tail"} else "+".join(sorted(made)))
