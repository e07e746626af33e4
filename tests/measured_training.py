"""Published runs as tests use them: the cases of `rpegc validate`, and the errors of the constants that ship."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.framework_classes import framework_constants
from rpegc.cost.table import PriceTable
from rpegc.frontend.hf_config import load_architecture
from rpegc.validate.facts import machine
from rpegc.validate.table import Folder
from rpegc.validate.training_rows import Case, read_cases

MEASURED = Path(__file__).parent / "data" / "measured"


def rows(name: str) -> list[dict[str, str]]:
    with (MEASURED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def architecture(model: str) -> Architecture:
    return load_architecture(model, Path("."), None)


@cache
def cases(memory: bool = False) -> tuple[Case, ...]:
    """Return the packaged runs with a step time, or those with a memory peak."""
    return tuple(read_cases(Folder(), memory)[0])


def price_case(case: Case) -> PriceTable:
    """Price one published run with the constants that ship."""
    return case.price(machine(case.gpu), framework_constants(case.framework, case.work.engine_class))


def summary(errors: list[float]) -> tuple[float, float, float]:
    """Return median and 90th percentile of the absolute errors, and the median error."""
    array = np.asarray(errors)
    return float(np.median(np.abs(array))), float(np.quantile(np.abs(array), 0.9)), float(np.median(array))
