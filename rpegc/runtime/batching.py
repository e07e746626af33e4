"""Deal rows to data-parallel ranks, cut each share into micro-batches, and lay a micro-batch out as tensors.

Every rank computes the whole deal from the lengths alone, so that all agree without a word. Response token j of a
prompt of p tokens stands at place p + j, and is predicted at place p + j - 1: there lie its target, its weight and
every value that belongs to it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rpegc.runtime.rows import Array, Rows
from rpegc.target import ShardedLayout


def deal(lengths: Mapping[int, int], shares: int) -> list[list[int]]:
    """Split rows over ranks so that tokens are even: the longest first, each to the lightest share."""
    heap = [(0, share) for share in range(shares)]
    dealt: list[list[int]] = [[] for _ in range(shares)]
    for row in sorted(lengths, key=lambda row: (-lengths[row], row)):
        tokens, share = heapq.heappop(heap)
        dealt[share].append(row)
        heapq.heappush(heap, (tokens + lengths[row], share))
    return dealt


def cut(rows: Sequence[int], lengths: Mapping[int, int], layout: ShardedLayout) -> list[list[int]]:
    """Cut a share into micro-batches: `micro_batch` rows each, or as many as `token_budget` holds with padding.

    The budget is that of one GPU before the multiplication by ulysses. A row longer than it stands alone.
    """
    order = sorted(rows, key=lambda row: (-lengths[row], row))
    budget = layout.token_budget * layout.ulysses
    batches: list[list[int]] = []
    for row in order:
        if batches and _has_room(len(batches[-1]), lengths[batches[-1][0]], layout.micro_batch, budget):
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _has_room(rows: int, longest: int, micro_batch: int, budget: int) -> bool:
    return rows < micro_batch if micro_batch else (rows + 1) * longest <= budget


def schedule(lengths: Mapping[int, int], layout: ShardedLayout) -> list[list[list[int]]]:
    """Return the micro-batches of every data-parallel rank: equally many for all (empty ones fill up).

    With a pipeline their number is a multiple of its parts.
    """
    shares = [cut(share, lengths, layout) for share in deal(lengths, layout.dp)]
    count = max(max(len(share) for share in shares), 1)
    count += -count % layout.pp
    return [share + [[] for _ in range(count - len(share))] for share in shares]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of a micro-batch, (B, S) each, and the places of its rows: (row, line, first place, number of tokens)."""

    rows: tuple[tuple[int, int, int, int], ...]
    tokens: Tensor
    targets: Tensor
    positions: Tensor
    fields: dict[str, Tensor]


def lay_out(
    batch: Rows, rows: Sequence[int], fields: Sequence[str], multiple: int, device: torch.device, shape: tuple[int, int]
) -> MicroBatch:
    """Return a micro-batch; `shape` is at least (rows, tokens), tokens are rounded up to `multiple`.

    Fields hold one number a response token; padding is 0 everywhere.
    """
    lines = max(len(rows), shape[0], 1)
    longest = max([len(batch.column("tokens")[row]) for row in rows] + [shape[1], multiple])
    width = longest + -longest % multiple
    tokens = np.zeros((lines, width), dtype=np.int64)
    targets = np.zeros((lines, width), dtype=np.int64)
    laid = {name: np.zeros((lines, width), dtype=np.float32) for name in fields}
    places = []
    for line, row in enumerate(rows):
        ids: Array = batch.column("tokens")[row]
        prompt = int(batch.column("prompt_length")[row][0])
        tokens[line, : len(ids)] = ids
        targets[line, : len(ids) - 1] = ids[1:]
        first, count = prompt - 1, len(ids) - prompt
        places.append((row, line, first, count))
        for name in fields:
            laid[name][line, first : first + count] = batch.column(name)[row]
    positions = np.broadcast_to(np.arange(width), (lines, width))
    return MicroBatch(
        tuple(places),
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(targets).to(device),
        torch.from_numpy(positions.copy()).to(device),
        {name: torch.from_numpy(values).to(device) for name, values in laid.items()},
    )


def slice_of(batch: MicroBatch, place: int, count: int) -> MicroBatch:
    """Return one of `count` equal slices along the tokens (Ulysses); `rows` stays that of the whole."""
    width = batch.tokens.shape[1] // count
    part = slice(place * width, (place + 1) * width)
    fields = {name: values[:, part] for name, values in batch.fields.items()}
    return MicroBatch(batch.rows, batch.tokens[:, part], batch.targets[:, part], batch.positions[:, part], fields)
