"""The price of any stage that runs on GPUs."""

from __future__ import annotations

from collections.abc import Callable

from rpegc.cost.forward import price_forward
from rpegc.cost.generation import price_generation
from rpegc.cost.table import PriceTable
from rpegc.cost.training import price_training
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.ir.graph import Op
from rpegc.target import Columns, MeshClass

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
    return PRICES[work.op](work, mesh, layouts, machine)
