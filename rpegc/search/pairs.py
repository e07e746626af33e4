"""Prices of weight syncs: for each sync, one pair table for each pair of mesh classes."""

from __future__ import annotations

from collections.abc import Mapping

from rpegc.cost.transitions import Link, receiving_side, sending_side, sync_between
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.ir.graph import Graph, Op
from rpegc.search.build import SyncPrices
from rpegc.search.tabulate import Tables


def sync_prices(
    graph: Graph,
    tables: Tables,
    works: Mapping[str, StageWork],
    machine: Machine,
    pools: Mapping[str, Machine] | None = None,
    link: Link | None = None,
) -> dict[str, SyncPrices]:
    """Price every sync of a graph for each pair of mesh classes and signatures of its two ends.

    `pools` are the machines of a cluster of unlike ones, `link` is the network between them.
    """
    machines = pools or {}
    prices: dict[str, SyncPrices] = {}
    for stage in graph.of_op(Op.SYNC):
        source = next(edge.source for edge in graph.into(stage.name))
        target = next(edge.target for edge in graph.out_of(stage.name))
        work = works[source]
        sending = {
            mesh: sending_side(work, machines.get(mesh.pool, machine), mesh, table.signatures)
            for mesh, table in tables.cells[source].items()
        }
        receiving = {m: receiving_side(work, m, t.signatures) for m, t in tables.cells[target].items()}
        prices[stage.name] = SyncPrices(
            source,
            target,
            {
                (from_mesh, to_mesh): sync_between(
                    work,
                    machines.get(from_mesh.pool, machine),
                    work.framework,
                    one,
                    other,
                    link if from_mesh.pool != to_mesh.pool else None,
                )
                for from_mesh, one in sending.items()
                for to_mesh, other in receiving.items()
            },
        )
    return prices
