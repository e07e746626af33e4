"""The price of stages that run as one unit: what a pass pays at its ends is paid once, by whoever pays most.

Micro-batches of the members follow each other through the same ranks in one layout. So

* a pipeline fills and drains once: while one member's pipeline drains, the next one's micro-batches fill it. The
  largest `pipeline_bubble` of the members stays, the others are hidden. (A schedule that also fills that one, as
  RLHFuse searches for, arXiv 2409.13221, would be faster still: it is not assumed.)
* loads of the other members' offloaded states, and the reduction of gradients that has no micro-batch of its own to
  hide behind, go on while a member computes. The largest stays exposed, the others are hidden as far as the
  computation of the unit lasts.
* a forward unit is dispatched once: one `fixed` time. Each optimizer keeps its own.

Nothing else is saved: the same layers run the same tokens, ranks wait for the same slowest rank, and gathers of
weights hide behind computation as they did. What it costs is memory: see `held_beside`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rpegc.cost.table import MemoryTerm, PriceTable, TimeTerm
from rpegc.target import FloatArray

BUBBLE = "pipeline_bubble"
COVERED = ("offload_parameters", "offload_optimizer", "data_parallel")
COMPUTED = ("gemm", "attention", "elementwise", "experts", "adapters", "logits_and_loss", "recompute")
_FORWARD_LOADED = ("weights_onloaded",)


def fused(members: tuple[PriceTable, ...], training: bool) -> tuple[PriceTable, ...]:
    """Return the members' tables as one unit runs them; all have the same layouts in the same order.

    The members' seconds add up to the unit's. Raises ValueError if the tables differ in rows or signatures.
    """
    first = members[0]
    if any(table.rows != first.rows or table.signatures != first.signatures for table in members):
        raise ValueError(f"{[table.stage for table in members]} cannot run under one layout")
    rows = first.rows
    computed = sum((_seconds(table, COMPUTED) for table in members), start=np.zeros(rows))
    saved: dict[tuple[int, str], FloatArray] = {}
    cover = computed
    for name in (BUBBLE, *COVERED, *(() if training else ("fixed",))):
        terms = [_seconds(table, (name,)) for table in members]
        largest = np.argmax(np.stack(terms), axis=0)
        for index, seconds in enumerate(terms):
            rest = np.where(largest == index, 0.0, seconds)
            hidden = np.minimum(rest, cover) if name in COVERED else rest
            cover = cover - hidden if name in COVERED else cover
            saved[index, name] = hidden
    return tuple(_without(table, index, saved) for index, table in enumerate(members))


def held_beside(term: MemoryTerm, training: bool) -> bool:
    """Whether a member's working memory stays while the micro-batches of another member run.

    In training all of it does: activations of both models are in flight. In a forward pass only loaded weights do.
    """
    return term.residence == "working" and (training or term.name in _FORWARD_LOADED)


def working_bytes(members: tuple[PriceTable, ...], training: bool) -> FloatArray:
    """Return the working set of a unit: the largest of its members', and what the others hold beside it."""
    held = [
        sum((t.bytes for t in table.memory if held_beside(t, training)), start=np.zeros(table.rows))
        for table in members
    ]
    together = sum(held, start=np.zeros(members[0].rows))
    own = [table.bytes("working") - beside for table, beside in zip(members, held, strict=True)]
    return np.asarray(together + np.max(np.stack(own), axis=0))


def _seconds(table: PriceTable, names: tuple[str, ...]) -> FloatArray:
    return sum((term.seconds for term in table.times if term.name in names), start=np.zeros(table.rows))


def _without(table: PriceTable, index: int, saved: dict[tuple[int, str], FloatArray]) -> PriceTable:
    times: list[TimeTerm] = []
    for term in table.times:
        hidden = saved.get((index, term.name), np.zeros(table.rows))
        covered = hidden if term.name in COVERED else np.zeros(table.rows)
        times.append(
            replace(term, seconds=term.seconds - hidden, hidden_seconds=term.hidden_seconds + covered)
            if np.any(hidden > 0)
            else term
        )
    changed = replace(table, times=tuple(times))
    return replace(changed, completion=changed.seconds[:, None])
