"""Why nothing fits: the stage and the memory term that break the machine, or the rule that refuses every layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rpegc.cost.fit import margin
from rpegc.cost.table import PriceTable
from rpegc.errors import InputError
from rpegc.ir.graph import Graph, Stage
from rpegc.search.enumerate import legal_layouts, refusing_rules
from rpegc.search.tabulate import Tables
from rpegc.target import MeshClass, Rule, layout_at
from rpegc.units import format_bytes


@dataclass(frozen=True, slots=True)
class Overflow:
    """The tightest resource: which term of which stage, how much it takes at the least, and what there is."""

    stage: str
    term: str
    sentence: str


def find_overflow(graph: Graph, tables: Tables, capacities_bytes: tuple[float, float]) -> Overflow:
    """Return the stage whose smallest layout needs the largest share of a GPU or host, with its largest term."""
    worst: tuple[float, Overflow] | None = None
    for stage in graph.stages:
        if not stage.op.on_gpus:
            continue
        for residences, capacity, factor, where in (
            (("weights", "resident", "working"), capacities_bytes[0], margin(stage.op), "a GPU"),
            (("host",), capacities_bytes[1], 1.0, "a node's host memory"),
        ):
            smallest = _smallest(tables.cells[stage.name], residences)
            if smallest is None:
                continue
            total, table, row = smallest
            share = total * factor / capacity
            name, amount = _largest_term(table, row, residences)
            sentence = (
                f"{stage.name} needs at least {format_bytes(total * factor)} of {where} "
                f"({format_bytes(capacity)} there), on {table.mesh} with {layout_at(table.layouts, row)}; "
                f"its largest term is {name} with {format_bytes(amount)}"
            )
            if worst is None or share > worst[0]:
                worst = (share, Overflow(stage.name, name, sentence))
    assert worst is not None, "a graph without GPU stages always fits"
    return worst[1]


def _smallest(
    cells: Mapping[MeshClass, PriceTable], residences: tuple[str, ...]
) -> tuple[float, PriceTable, int] | None:
    best: tuple[float, PriceTable, int] | None = None
    for table in cells.values():
        total = np.sum([table.bytes(residence) for residence in residences], axis=0)
        row = int(np.argmin(total))
        if best is None or total[row] < best[0]:
            best = (float(total[row]), table, row)
    return best


def _largest_term(table: PriceTable, row: int, residences: tuple[str, ...]) -> tuple[str, float]:
    amounts = [(float(term.bytes[row]), term.name) for term in table.memory if term.residence in residences]
    amount, name = max(amounts, default=(0.0, "none"))
    return name, amount


def no_layout(
    stage: Stage, meshes: tuple[MeshClass, ...], facts: dict[str, int | float], rules: tuple[Rule, ...]
) -> InputError:
    """Say which rule leaves a stage without a legal layout on any mesh, with what it knows of the values."""
    counts: dict[str, int] = {}
    for mesh in meshes:
        legal_layouts(stage, mesh, facts, rules, counts)
    by_name = {rule.name: rule for rule in refusing_rules(stage, rules)}
    largest = meshes[-1]
    refused = sorted(((count, name) for name, count in counts.items() if count), reverse=True)
    reason = (
        by_name[refused[0][1]].message.format_map(_Shown(facts | _decided(stage, largest)))
        if refused
        else "its domain is empty"
    )
    listing = ", ".join(f"{name} {count}" for count, name in refused)
    return InputError(
        f"stage `{stage.name}` has no legal layout on any mesh up to {largest} GPUs: {reason}",
        stage.position,
        f"layouts refused, by rule: {listing}",
    )


def _decided(stage: Stage, largest: MeshClass) -> dict[str, int | float]:
    """Return what is known of every layout: fields with one value left, and the largest mesh."""
    single = {name: values[0] for name, values in stage.layouts if len(values) == 1}
    numbers = {name: value for name, value in single.items() if isinstance(value, int | float)}
    return numbers | {"gpus": largest.gpus, "nodes": largest.nodes, "gpus_per_node": largest.gpus_per_node}


class _Shown(dict[str, int | float]):
    """Values for a rule's message; a layout field that varies prints as a letter."""

    def __missing__(self, key: str) -> str:
        return "x"
