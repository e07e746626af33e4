"""Which units hold one copy of weights, and how many bytes of weights each may share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rpegc.cost.table import PriceTable
from rpegc.ir.fusion import units
from rpegc.ir.graph import Graph, Op, Stage
from rpegc.search.tabulate import Tables
from rpegc.target import FloatArray


@dataclass(frozen=True, slots=True)
class Sharing:
    """Groups of units that may share weights, and the roles whose weights each group shares."""

    groups: Mapping[tuple[str, ...], tuple[str, ...]]

    def roles_of(self, unit: str) -> tuple[str, ...]:
        """Return the roles whose weights a unit may share with others."""
        return next((roles for names, roles in self.groups.items() if unit in names), ())


def sharing_of(graph: Graph, tables: Tables) -> Sharing:
    """Training and forward stages of one role hold one copy of its weights; an engine always holds its own.

    The solver knows one group a unit. Where a composite could share with several others, the largest model decides;
    the weights of the others count once more (more than a target would need, never less).
    """
    holders: dict[str, list[str]] = {}
    for unit, members in units(graph).items():
        for stage in members:
            if stage.op in (Op.TRAIN, Op.FORWARD) and unit not in holders.setdefault(stage.model, []):
                holders[stage.model].append(unit)
    size = {role: max(_largest(tables, stage) for stage in graph.stages if stage.model == role) for role in holders}
    groups: dict[tuple[str, ...], tuple[str, ...]] = {}
    for role in sorted(holders, key=lambda role: -size[role]):
        names = tuple(holders[role])
        taken = any(set(names) & set(other) for other in groups if other != names)
        if len(names) > 1 and not taken:
            groups[names] = (*groups.get(names, ()), role)
    return Sharing(groups)


def _largest(tables: Tables, stage: Stage) -> float:
    return max((float(t.bytes("weights").max()) for t in tables.cells.get(stage.name, {}).values()), default=0.0)


def weights_of(members: tuple[Stage, ...], tables: tuple[PriceTable, ...], roles: tuple[str, ...]) -> FloatArray:
    """Return the bytes of weights that a unit holds of some roles; members of one role hold them once."""
    held: dict[str, FloatArray] = {}
    for stage, table in zip(members, tables, strict=True):
        if stage.model in roles:
            held[stage.model] = np.maximum(held.get(stage.model, np.zeros(table.rows)), table.bytes("weights"))
    return sum(held.values(), start=np.zeros(tables[0].rows))
