"""Small expressions that several constraints of the integer program share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ortools.sat.python import cp_model

from rpegc.search.solver.variables import Option

Linear: TypeAlias = Any
"""A linear expression over variables. OR-tools declares it as a union whose members mypy cannot add up."""


def total(options: Iterable[Option], amount: Callable[[Option], int]) -> Linear:
    """Return the amount of the chosen options."""
    pairs = [(option.chosen, amount(option)) for option in options]
    return cp_model.LinearExpr.weighted_sum([chosen for chosen, _ in pairs], [weight for _, weight in pairs])


def within(options: list[Option], nodes: tuple[int, ...]) -> list[Option]:
    """Return the options on these tree nodes."""
    return [option for option in options if option.node in nodes]
