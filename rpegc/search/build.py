"""From price tables to the integer problem. Quantised once, here: whole milliseconds, memory in units, rounded up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rpegc.cost.fit import margin
from rpegc.cost.fusion import working_bytes
from rpegc.cost.table import PairTable, PriceTable
from rpegc.ir.fusion import contracted, unit_names, units
from rpegc.ir.graph import Graph, Op, Stage
from rpegc.search.sharing import sharing_of, weights_of
from rpegc.search.solver import problem as integer
from rpegc.search.tabulate import Tables
from rpegc.target import FloatArray, IntArray, MeshClass, Tie, packed
from rpegc.units import MIB

MEMORY_UNIT_BYTES = 256 * MIB
"""Bytes of one memory unit. Coarser units prune more rows and waste at most one unit a stage and residence."""

EVEN_PARTS = 8
"""Parts in which a streaming pass completes; chunks of an edge divide it."""

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
    unit = unit_names(graph)
    timed = contracted(graph)
    sharing = sharing_of(graph, tables)
    tied = tuple(Tie(tuple(dict.fromkeys(unit[name] for name in tie.stages)), tie.fields, tie.source) for tie in ties)
    seen = {name for group in sharing.groups for name in group}
    seen |= {unit[name] for sync in syncs.values() for name in (sync.source, sync.target)}
    tie_keys: dict[tuple[int, ...], int] = {}
    for name, members in units(graph).items():
        stage = members[0]
        if stage.op is Op.FUNCTION:
            total = sum(float(term.seconds.sum()) for term in tables.functions[stage.name])
            others = tuple(s.name for s in graph.stages if s.op is Op.FUNCTION and s.name != stage.name)
            stages.append(integer.HostStage(stage.name, int(to_milliseconds(np.array([total]))[0]), others))
        elif stage.op.on_gpus:
            streams = any(edge.chunks > 1 for edge in timed.out_of(name))
            whole = _Unit(name, members, sharing.roles_of(name), name in seen, streams)
            cells = {
                index: _cell(whole, tables, mesh, tied, numbering, tie_keys, scales.get(mesh.pool, (1.0, 1.0)))
                for index, mesh in enumerate(tables.meshes)
                if mesh in tables.cells[stage.name]
            }
            stages.append(integer.GpuStage(name, cells))
    stages += [_sync(graph.stage(name), prices, tables, numbering, unit) for name, prices in syncs.items()]
    edges = tuple(integer.Edge(edge.source, edge.target, edge.distance, edge.chunks) for edge in timed.edges)
    device, host = (int(count // MEMORY_UNIT_BYTES) for count in capacities_bytes)
    return integer.Problem(
        cluster,
        tables.meshes,
        tuple(stages),
        tuple(dict.fromkeys(edges)),
        ladder,
        device,
        host,
        sharing=tuple(sharing.groups),
        ties=tuple(integer.TieGroup(tie.stages) for tie in tied),
    )


@dataclass(frozen=True, slots=True)
class _Unit:
    """What becomes one stage of the integer problem: a stage, or the members of a composite."""

    name: str
    members: tuple[Stage, ...]
    shared_roles: tuple[str, ...]
    visible: bool
    streams: bool


def _cell(
    unit: _Unit,
    tables: Tables,
    mesh: MeshClass,
    ties: tuple[Tie, ...],
    numbering: dict[SignatureKey, int],
    tie_keys: dict[tuple[int, ...], int],
    scale: tuple[float, ...],
) -> integer.Cell:
    """Quantise one unit's table. Units whose signature nobody else can see all share one, so that more rows prune."""
    members = tuple(tables.cells[stage.name][mesh] for stage in unit.members)
    table, op, index = members[0], unit.members[0].op, tables.meshes.index(mesh)
    factor, host_factor = margin(op) * scale[0], scale[1]
    pairs = table.signatures if unit.visible else ((("stage", -1),),) * len(table.signatures)
    numbers = np.array([numbering.setdefault((index, key), len(numbering)) for key in pairs], dtype=np.int64)
    completion = _completion(members, unit.streams)
    columns = [_tie_column(unit.name, table, tie, tie_keys) for tie in ties]
    shared = weights_of(unit.members, members, unit.shared_roles)
    own = weights_of(unit.members, members, tuple({s.model: None for s in unit.members if s.model})) - shared
    resident = own + sum((member.bytes("resident") for member in members), start=np.zeros(table.rows))
    working = working_bytes(members, op is Op.TRAIN) if len(members) > 1 else table.bytes("working")
    return integer.Cell(
        milliseconds=completion[:, -1].copy(),
        completion=completion,
        weights=to_units(shared * factor),
        resident=to_units(resident * factor),
        working=to_units(working * factor),
        host=to_units(sum((member.bytes("host") for member in members), start=np.zeros(table.rows)) * host_factor),
        signature=numbers[table.signature],
        ties=np.stack(columns, axis=1) if columns else np.zeros((table.rows, 0), dtype=np.int64),
        layout=np.arange(table.rows, dtype=np.int64),
    )


def _completion(members: tuple[PriceTable, ...], streams: bool) -> IntArray:
    """Return when parts of the samples are done, in milliseconds; passes on GPUs go through them at an even pace."""
    total = to_milliseconds(sum((member.seconds for member in members), start=np.zeros(members[0].rows)))
    curve = members[0].completion
    if streams and curve.shape[1] == 1:
        parts = -(-total[:, None] * np.arange(1, EVEN_PARTS + 1) // EVEN_PARTS)
    elif len(members) > 1 or not streams:
        parts = total[:, None]
    else:
        parts = np.minimum(to_milliseconds(curve), total[:, None])
    parts[:, -1] = total
    return np.asarray(np.maximum(parts, 1), dtype=np.int64)


def _tie_column(unit: str, table: PriceTable, tie: Tie, tie_keys: dict[tuple[int, ...], int]) -> IntArray:
    """Number the values of the tied fields of each row, equally for every stage of the tie."""
    if unit not in tie.stages:
        return np.zeros(table.rows, dtype=np.int64)
    columns = [np.asarray(table.layouts[name], dtype=np.int64) for name in tie.fields]
    _, first, inverse = np.unique(packed(columns), return_index=True, return_inverse=True)
    rows = np.stack([column[first] for column in columns], axis=1)
    keys = [tie_keys.setdefault(tuple(row), len(tie_keys)) for row in rows.tolist()]
    return np.asarray(keys, dtype=np.int64)[inverse.reshape(-1)]


def _sync(
    stage: Stage,
    prices: SyncPrices,
    tables: Tables,
    numbering: Mapping[SignatureKey, int],
    unit: Mapping[str, str],
) -> integer.SyncStage:
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
    source, target = unit[prices.source], unit[prices.target]
    return integer.SyncStage(stage.name, source, target, tuple(row_of), tuple(column_of), across, same)


def _signature_numbers(stage: str, tables: Tables, numbering: Mapping[SignatureKey, int]) -> dict[MeshClass, list[int]]:
    """Return, per mesh class, the problem-wide numbers of a table's signatures, in the table's order."""
    return {
        mesh: [numbering[(tables.meshes.index(mesh), key)] for key in table.signatures]
        for mesh, table in tables.cells[stage].items()
    }
