"""From stages with domains to price tables: one table a GPU stage and mesh class, holding every legal layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rpegc.cost.functions import price_function
from rpegc.cost.fusion import fused
from rpegc.cost.price import price
from rpegc.cost.table import PriceTable, TimeTerm
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.ir.fusion import composites
from rpegc.ir.graph import Graph, Op, Stage
from rpegc.search.align import aligned, rows_of
from rpegc.search.enumerate import legal_layouts
from rpegc.target import MeshClass, Rule


@dataclass(frozen=True, slots=True)
class Tables:
    """All prices of one variant.

    `cells[stage][mesh class]` is the table of a GPU stage; `functions[stage]` the named terms of a host stage.
    `layouts` counts legal layouts before any pruning.
    """

    meshes: tuple[MeshClass, ...]
    cells: Mapping[str, Mapping[MeshClass, PriceTable]]
    functions: Mapping[str, tuple[TimeTerm, ...]]
    layouts: int


def pool_of(stage: Stage) -> str:
    """Return the pool of a cluster of unlike machines that a stage runs in."""
    return "rollout" if stage.op is Op.GENERATE else "train"


class TableCache:
    """Tables already made, so that variants that share a stage and its domain price it once."""

    def __init__(self) -> None:
        self._tables: dict[tuple[object, ...], PriceTable | None] = {}
        self._fused: dict[tuple[int, ...], tuple[PriceTable, ...]] = {}

    def table(
        self,
        stage: Stage,
        work: StageWork,
        mesh: MeshClass,
        machine: Machine,
        facts: dict[str, int | float],
        rules: tuple[Rule, ...],
    ) -> PriceTable | None:
        """Return the table of one cell, or None if no layout is legal there."""
        key = (
            stage.name,
            stage.op,
            stage.layouts,
            work,
            mesh,
            tuple(rule.name for rule in rules),
            tuple(facts.items()),
        )
        if key not in self._tables:
            self._tables[key] = _price_cell(stage, work, mesh, machine, facts, rules)
        return self._tables[key]

    def fused(self, members: tuple[PriceTable, ...], training: bool) -> tuple[PriceTable, ...]:
        """Return the members' tables as one unit runs them, on the layouts that all of them have; none if none is."""
        key = tuple(id(table) for table in members)
        if key not in self._fused:
            together = aligned(members)
            self._fused[key] = fused(together, training) if together else ()
        return self._fused[key]


def tabulate(
    graph: Graph,
    works: Mapping[str, StageWork],
    facts: Mapping[str, dict[str, int | float]],
    rules: Callable[[str, str], tuple[Rule, ...]],
    meshes: tuple[MeshClass, ...],
    machine: Machine,
    cache: TableCache,
    pools: Mapping[str, Machine] | None = None,
) -> Tables:
    """Price every legal layout of every stage on every mesh class.

    `facts[stage]` are the context columns of a stage, `rules(op, role)` the target's rules. With `pools` a stage is
    priced on the mesh classes of its pool alone, on that pool's machine; functions run on the hosts of `machine`'s.
    """
    cells: dict[str, dict[MeshClass, PriceTable]] = {}
    functions: dict[str, tuple[TimeTerm, ...]] = {}
    layouts = 0
    for stage in graph.stages:
        if stage.op is Op.FUNCTION:
            hosts = [mesh.nodes for mesh in meshes if mesh.pool in ("", "train")]
            functions[stage.name] = price_function(works[stage.name], max(hosts), machine)
        if not stage.op.on_gpus:
            continue
        cells[stage.name] = {}
        for mesh in meshes:
            if pools and mesh.pool != pool_of(stage):
                continue
            here = pools[mesh.pool] if pools else machine
            ruled = rules(stage.op.value, stage.model)
            table = cache.table(stage, works[stage.name], mesh, here, facts[stage.name], ruled)
            if table is not None:
                layouts += table.rows
                cells[stage.name][mesh] = table
    for members in composites(graph).values():
        _fuse_cells(cells, members, meshes, cache)
    return Tables(meshes, cells, functions, layouts)


def _fuse_cells(
    cells: dict[str, dict[MeshClass, PriceTable]],
    members: tuple[Stage, ...],
    meshes: tuple[MeshClass, ...],
    cache: TableCache,
) -> None:
    """Replace the tables of a composite's members by those of one unit; a mesh class without a common layout goes."""
    for mesh in meshes:
        single = [cells[stage.name].pop(mesh, None) for stage in members]
        present = tuple(table for table in single if table is not None)
        together = cache.fused(present, members[0].op is Op.TRAIN) if len(present) == len(members) else ()
        for stage, table in zip(members, together, strict=False):
            cells[stage.name][mesh] = table


def _price_cell(
    stage: Stage,
    work: StageWork,
    mesh: MeshClass,
    machine: Machine,
    facts: dict[str, int | float],
    rules: tuple[Rule, ...],
) -> PriceTable | None:
    columns = legal_layouts(stage, mesh, facts, rules)
    if not len(columns["tp"]):
        return None
    table = price(work, mesh, columns, machine)
    return rows_of(table, np.flatnonzero(np.isfinite(table.seconds)))
