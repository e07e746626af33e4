"""The train stage: from a step's rows to optimizer updates, of the actor and of the critic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rpegc.runtime.batching import MicroBatch
from rpegc.runtime.losses import PolicyLoss, denominator, token_weight, value_losses
from rpegc.runtime.rows import Array, Rows
from rpegc.runtime.settings import Settings
from rpegc.runtime.worker import LossOf, Worker


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a train stage learns from: the columns it reads, and the loss that they make."""

    fields: tuple[str, ...]
    loss_of: LossOf
    keys: tuple[str, ...]


def lesson_of(settings: Settings, head: str, values: Iterable[str], stale: bool) -> Lesson:
    """Return the lesson of a train stage that uses these values; `stale` = samples may be older than the trainer."""
    return _critic_lesson(settings) if head == "scalar" else _actor_lesson(settings, set(values), stale)


def _actor_lesson(settings: Settings, values: set[str], stale: bool) -> Lesson:
    coefficient, where, estimator = settings.kl
    penalised = where == "loss" and coefficient > 0 and "reference_logprobs" in values
    loss = PolicyLoss(*settings.clip, coefficient if penalised else 0.0, estimator)
    old = next((name for name in ("old_logprobs", "behaviour_logprobs") if name in values), "")
    if "old_logprobs" not in values and "advantages" in values and settings.minibatches * settings.epochs == 1:
        old = ""  # dropped: with one update a step the old policy is the current one
    corrected = stale and old == "old_logprobs" and settings.options["importance_cap"] > 0
    fields = ["advantages", "token_weight"] + [old] * bool(old)
    fields += ["reference_logprobs"] * penalised + ["importance"] * corrected

    def loss_of(logprobs: Tensor, micro: MicroBatch) -> dict[str, Tensor]:
        columns = micro.fields
        weight = columns["token_weight"]
        before = columns[old] if old else logprobs.detach()
        reference, importance = columns.get("reference_logprobs"), columns.get("importance")
        # Padding holds zeros: an old log-prob of 0 there would blow the ratio up before its weight removes it.
        held = torch.where(weight > 0, logprobs, before.detach())
        tokens, clipped = loss.tokens(held, before, columns["advantages"], reference, importance)
        drift = (held.detach() - before).abs()
        real = (weight > 0).float()
        return {
            "loss": (tokens * weight).sum(),
            "clipped": (clipped * real).sum(),
            "drift": (drift * real).sum(),
            "tokens": real.sum(),
        }

    return Lesson(tuple(fields), loss_of, ("loss", "clipped", "drift", "tokens"))


def _critic_lesson(settings: Settings) -> Lesson:
    clip = float(settings.options["value_clip"])

    def loss_of(values: Tensor, micro: MicroBatch) -> dict[str, Tensor]:
        weight = micro.fields["token_weight"]
        tokens = value_losses(values, micro.fields["values"], micro.fields["returns"], clip)
        return {"loss": (tokens * weight).sum(), "tokens": (weight > 0).float().sum()}

    return Lesson(("values", "returns", "token_weight"), loss_of, ("loss", "tokens"))


def prepare(batch: Rows, settings: Settings, lesson: Lesson, step: int) -> dict[int, int]:
    """Add the columns that the loss needs beside those of other stages; return the response length of each row."""
    lengths = {}
    aggregation = "token-mean" if "returns" in lesson.fields else str(settings.options["aggregation"])
    for row in batch.index:
        length = len(batch.column("tokens")[row]) - int(batch.scalar("prompt_length", row))
        lengths[row] = length
        weight = token_weight(aggregation, length, settings.max_response_tokens)
        batch.put(row, token_weight=np.full(length, weight, dtype=np.float32))
        if "importance" in lesson.fields:
            batch.put(row, importance=_importance(batch, row, step, float(settings.options["importance_cap"])))
    return lengths


def _importance(batch: Rows, row: int, step: int, cap: float) -> Array:
    """Return min(old / behaviour, cap) for each token of a stale row, 1 for a fresh one."""
    old, behaviour = batch.column("old_logprobs")[row], batch.column("behaviour_logprobs")[row]
    if int(batch.scalar("version", row)) >= step:
        return np.ones(len(old), dtype=np.float32)
    return np.asarray(np.minimum(np.exp(old - behaviour), cap), dtype=np.float32)


class Update:
    """One optimizer update, fed with any number of pieces of its rows."""

    def __init__(self, worker: Worker, lesson: Lesson, aggregation: str) -> None:
        self.worker, self.lesson, self.aggregation = worker, lesson, aggregation
        self.sums: dict[str, float] = {}
        self.lengths: list[int] = []

    def add(self, batch: Rows, rows: Sequence[int], lengths: Mapping[int, int]) -> None:
        """Accumulate the gradients of some rows."""
        for key, value in self.worker.accumulate(batch, rows, self.lesson.fields, self.lesson.loss_of).items():
            self.sums[key] = self.sums.get(key, 0.0) + value
        self.lengths += [lengths[row] for row in rows]

    def finish(self) -> dict[str, float]:
        """Update the weights; return the loss of the update and what else is worth a line."""
        assert self.worker.optimizer is not None, "only trained models are updated"
        divisor = denominator(self.aggregation, self.lengths)
        norm = self.worker.optimizer.step(divisor)
        totals = self.worker.total(self.sums, self.lesson.keys)
        tokens = max(totals["tokens"], 1.0)
        figures = {"loss": totals["loss"] / divisor, "gradient_norm": norm}
        figures |= {key: totals[key] / tokens for key in self.lesson.keys if key not in ("loss", "tokens")}
        return figures


def minibatches(rows: Sequence[int], count: int) -> list[list[int]]:
    """Split a step's rows into updates of equal size, in the order of the prompts."""
    size = len(rows) // count
    return [list(rows[number * size : (number + 1) * size]) for number in range(count)]
