"""From price tables to the integer problem. Quantised once, here: whole milliseconds, memory in units, rounded up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rpegc.cost.fit import margin
from rpegc.cost.table import PairTable, PriceTable
from rpegc.ir.graph import Graph, Op, Stage
from rpegc.search.solver import problem as integer
from rpegc.search.tabulate import Tables
from rpegc.target import FloatArray, IntArray, MeshClass, Tie, packed
from rpegc.units import MIB

MEMORY_UNIT_BYTES = 256 * MIB
"""Bytes of one memory unit. Coarser units prune more rows and waste at most one unit a stage and residence."""

SignatureKey = tuple[int, tuple[tuple[str, int], ...]]
"""Mesh class index and the sorted (field, value) pairs that other stages can see."""


@dataclass(frozen=True, slots=True)
class SyncPrices:
    """The pair table of one sync for each (source mesh class, target mesh class)."""

    source: str
    target: str
    pairs: Mapping[tuple[MeshClass, MeshClass], PairTable]


def to_milliseconds(seconds: FloatArray) -> IntArray:
    """Round seconds up to whole milliseconds."""
    return np.ceil(np.asarray(seconds) * 1000.0 - 1e-6).astype(np.int64)


def to_units(count_bytes: FloatArray) -> IntArray:
    """Round bytes up to whole memory units."""
    return np.ceil(np.asarray(count_bytes) / MEMORY_UNIT_BYTES - 1e-9).astype(np.int64)


def build(
    graph: Graph,
    tables: Tables,
    syncs: Mapping[str, SyncPrices],
    ties: tuple[Tie, ...],
    ladder: tuple[integer.Template, ...],
    cluster: MeshClass,
    capacities_bytes: tuple[float, float],
    pool_capacities: Mapping[str, tuple[float, float]] | None = None,
) -> integer.Problem:
    """Build the integer problem of one variant; `capacities_bytes` are those of one GPU and of one node's host.

    The problem knows one capacity. Where pools have others (`pool_capacities`), their bytes are scaled so that what
    fills theirs fills the problem's; no mesh lies in two pools, so that bytes of unlike scale never meet.
    """
    scales = {
        pool: tuple(whole / max(own, 1.0) for whole, own in zip(capacities_bytes, capacities, strict=True))
        for pool, capacities in (pool_capacities or {}).items()
    }
    numbering: dict[SignatureKey, int] = {}
    stages: list[integer.Stage] = []
    tie_groups = tuple(integer.TieGroup(tie.stages) for tie in ties)
    sharing = _sharing(graph)
    seen = {name for group in sharing for name in group}
    seen |= {name for sync in syncs.values() for name in (sync.source, sync.target)}
    tie_keys: dict[tuple[int, ...], int] = {}
    for stage in graph.stages:
        if stage.op is Op.FUNCTION:
            total = sum(float(term.seconds.sum()) for term in tables.functions[stage.name])
            others = tuple(s.name for s in graph.stages if s.op is Op.FUNCTION and s.name != stage.name)
            stages.append(integer.HostStage(stage.name, int(to_milliseconds(np.array([total]))[0]), others))
        elif stage.op.on_gpus:
            visible = stage.name in seen
            cells = {
                index: _cell(
                    stage,
                    tables.cells[stage.name][mesh],
                    index,
                    visible,
                    ties,
                    numbering,
                    tie_keys,
                    scales.get(mesh.pool, (1.0, 1.0)),
                )
                for index, mesh in enumerate(tables.meshes)
                if mesh in tables.cells[stage.name]
            }
            stages.append(integer.GpuStage(stage.name, cells))
    stages += [_sync(graph.stage(name), prices, tables, numbering) for name, prices in syncs.items()]
    edges = tuple(integer.Edge(edge.source, edge.target, edge.distance, edge.chunks) for edge in graph.edges)
    device, host = (int(count // MEMORY_UNIT_BYTES) for count in capacities_bytes)
    return integer.Problem(
        cluster, tables.meshes, tuple(stages), edges, ladder, device, host, sharing=sharing, ties=tie_groups
    )


def _cell(
    stage: Stage,
    table: PriceTable,
    index: int,
    visible: bool,
    ties: tuple[Tie, ...],
    numbering: dict[SignatureKey, int],
    tie_keys: dict[tuple[int, ...], int],
    scale: tuple[float, ...],
) -> integer.Cell:
    """Quantise one table. Stages whose signature no other stage can see all share one, so that more rows prune."""
    factor, host_factor = margin(stage.op) * scale[0], scale[1]
    pairs = table.signatures if visible else ((("stage", -1),),) * len(table.signatures)
    numbers = np.array([numbering.setdefault((index, key), len(numbering)) for key in pairs], dtype=np.int64)
    completion = np.minimum(to_milliseconds(table.completion), to_milliseconds(table.seconds)[:, None])
    completion[:, -1] = to_milliseconds(table.seconds)
    columns = [_tie_column(stage, table, tie, tie_keys) for tie in ties]
    return integer.Cell(
        milliseconds=completion[:, -1].copy(),
        completion=completion,
        weights=to_units(table.bytes("weights") * factor),
        resident=to_units(table.bytes("resident") * factor),
        working=to_units(table.bytes("working") * factor),
        host=to_units(table.bytes("host") * host_factor),
        signature=numbers[table.signature],
        ties=np.stack(columns, axis=1) if columns else np.zeros((table.rows, 0), dtype=np.int64),
        layout=np.arange(table.rows, dtype=np.int64),
    )


def _tie_column(stage: Stage, table: PriceTable, tie: Tie, tie_keys: dict[tuple[int, ...], int]) -> IntArray:
    """Number the values of the tied fields of each row, equally for every stage of the tie."""
    if stage.name not in tie.stages:
        return np.zeros(table.rows, dtype=np.int64)
    columns = [np.asarray(table.layouts[name], dtype=np.int64) for name in tie.fields]
    _, first, inverse = np.unique(packed(columns), return_index=True, return_inverse=True)
    rows = np.stack([column[first] for column in columns], axis=1)
    keys = [tie_keys.setdefault(tuple(row), len(tie_keys)) for row in rows.tolist()]
    return np.asarray(keys, dtype=np.int64)[inverse.reshape(-1)]


def _sharing(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Training and forward stages of one role hold one copy of its weights; an engine always holds its own."""
    roles: dict[str, list[str]] = {}
    for stage in graph.stages:
        if stage.op in (Op.TRAIN, Op.FORWARD):
            roles.setdefault(stage.model, []).append(stage.name)
    return tuple(tuple(names) for names in roles.values() if len(names) > 1)


def _sync(stage: Stage, prices: SyncPrices, tables: Tables, numbering: Mapping[SignatureKey, int]) -> integer.SyncStage:
    """Lay the pair tables of all mesh classes out as one matrix over the signatures of both stages."""
    rows = _signature_numbers(prices.source, tables, numbering)
    columns = _signature_numbers(prices.target, tables, numbering)
    row_of = {number: place for place, number in enumerate(n for numbers in rows.values() for n in numbers)}
    column_of = {number: place for place, number in enumerate(n for numbers in columns.values() for n in numbers)}
    across = np.zeros((len(row_of), len(column_of)), dtype=np.int64)
    same = np.zeros_like(across)
    for (source_mesh, target_mesh), pair in prices.pairs.items():
        block = np.ix_([row_of[n] for n in rows[source_mesh]], [column_of[n] for n in columns[target_mesh]])
        across[block] = to_milliseconds(pair.across)
        same[block] = to_milliseconds(pair.same)
    return integer.SyncStage(stage.name, prices.source, prices.target, tuple(row_of), tuple(column_of), across, same)


def _signature_numbers(stage: str, tables: Tables, numbering: Mapping[SignatureKey, int]) -> dict[MeshClass, list[int]]:
    """Return, per mesh class, the problem-wide numbers of a table's signatures, in the table's order."""
    return {
        mesh: [numbering[(tables.meshes.index(mesh), key)] for key in table.signatures]
        for mesh, table in tables.cells[stage].items()
    }
