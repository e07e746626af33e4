"""The price of any stage that runs on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rpegc.cost.forward import price_forward
from rpegc.cost.generation import price_generation
from rpegc.cost.table import PriceTable
from rpegc.cost.training import price_training
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.ir.graph import Op
from rpegc.target import Columns, FloatArray, MeshClass

PRICES: dict[Op, Callable[[StageWork, MeshClass, Columns, Machine], PriceTable]] = {
    Op.TRAIN: price_training,
    Op.FORWARD: price_forward,
    Op.GENERATE: price_generation,
}


def price(work: StageWork, mesh: MeshClass, layouts: Columns, machine: Machine) -> PriceTable:
    """Return the price table of a stage on one mesh class; functions and syncs have prices of their own.

    Raises ValueError for an op that occupies no GPUs with a layout.
    """
    if work.op not in PRICES:
        raise ValueError(f"stage {work.stage}: a {work.op} stage has no layouts to price")
    table = PRICES[work.op](work, mesh, layouts, machine)
    return replace(table, completion=part_completion(table.completion, work)) if work.samples else table


def part_completion(own: FloatArray, work: StageWork) -> FloatArray:
    """Return when parts of all samples of the step are done, as far as this engine has to finish them; (rows, parts).

    `own` counts the engine's own samples. The head finishes the first 1 - tail share of all samples, the tail the
    others; what another engine finishes does not keep anybody waiting here.
    """
    parts = own.shape[1]
    whole = np.arange(1, parts + 1) / parts
    finished = 1.0 - work.tail_share
    if work.samples == "head":  # the sequences that leave are those that end last
        share = np.minimum(whole, finished)
    else:
        share = np.clip((whole - finished) / max(work.tail_share, 1e-12), 0.0, 1.0)
    column = np.ceil(share * parts - 1e-9).astype(np.int64) - 1
    return np.where(column[None, :] >= 0, own[:, np.maximum(column, 0)], 0.0)
