"""Why nothing fits: the stage and the memory term that break the machine, or the rule that refuses every layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rpegc.cost.fit import margin
from rpegc.cost.table import PriceTable
from rpegc.errors import InputError, NothingFits
from rpegc.ir.graph import Graph, Stage
from rpegc.search.enumerate import legal_layouts, refusing_rules
from rpegc.search.tabulate import Tables, pool_of
from rpegc.target import MeshClass, Rule, describe_layout, layout_at
from rpegc.units import format_bytes


@dataclass(frozen=True, slots=True)
class Overflow:
    """The tightest resource: which term of which stage, how much it takes at the least, and what there is."""

    stage: str
    term: str
    sentence: str


def find_overflow(
    graph: Graph,
    tables: Tables,
    capacities_bytes: tuple[float, float],
    pools: Mapping[str, tuple[float, float]] | None = None,
) -> Overflow:
    """Return the stage whose smallest layout needs the largest share of a GPU or host, with its largest term.

    `pools` holds the capacities of pools of unlike machines.
    """
    worst: tuple[float, Overflow] | None = None
    for stage in graph.stages:
        if not stage.op.on_gpus:
            continue
        device, host = pools[pool_of(stage)] if pools else capacities_bytes
        for residences, capacity, factor, where in (
            (("weights", "resident", "working"), device, margin(stage.op), "a GPU"),
            (("host",), host, 1.0, "a node's host memory"),
        ):
            smallest = _smallest(tables.cells[stage.name], residences)
            if smallest is None:
                continue
            total, table, row = smallest
            share = total * factor / capacity
            name, amount = _largest_term(table, row, residences)
            sentence = (
                f"{stage.name} needs at least {format_bytes(total * factor)} of {where} "
                f"({format_bytes(capacity)} there), on {table.mesh} GPUs with "
                f"{describe_layout(layout_at(table.layouts, row))}; "
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
) -> InputError | NothingFits:
    """Say why a stage has no layout on any mesh: the rule that refuses most on the largest one, or its memory.

    Where all but capacity rules leave a layout, the machine is too small and nothing fits; else the input is wrong.
    """
    largest = meshes[-1]
    refused = _refused(stage, largest, facts, rules)
    lenient = tuple(rule for rule in rules if not rule.capacity)
    roomy = [legal_layouts(stage, mesh, facts, lenient) for mesh in meshes]
    fitting = [columns for columns in roomy if len(columns["tp"])]
    if fitting:
        # Domains ascend, so the last row of the largest mesh has the most memory to offer.
        most = _Shown(facts | {name: array[-1].item() for name, array in fitting[-1].items()})
        tight = [rule for _, rule in refused if rule.capacity]
        term = tight[0].message.format_map(most) if tight else _NO_ROOM.format_map(most)
        return NothingFits(f"stage `{stage.name}` fits no mesh up to {largest} GPUs", f"{stage.name}: {term}")
    reason = _reason(stage, largest, facts, refused) or "its domain is empty"
    listing = ", ".join(f"{rule.name} {count}" for count, rule in refused)
    return InputError(
        f"stage `{stage.name}` has no legal layout on any mesh up to {largest} GPUs: {reason}",
        stage.position,
        f"layouts of the largest mesh refused, by rule: {listing}",
    )


_NO_ROOM = "beside the weights there is no room for the KV cache of one longest sequence ({max_sequence_tokens} tokens)"


def why_unused(stage: Stage, mesh: MeshClass, facts: dict[str, int | float], rules: tuple[Rule, ...]) -> str:
    """Say which rule leaves a stage without a layout on a mesh."""
    reason = _reason(stage, mesh, facts, _refused(stage, mesh, facts, rules))
    return f"{stage.name} has no layout on {mesh} GPUs" + (f": {reason}" if reason else "")


def why_refused(
    stage: Stage, mesh: MeshClass, facts: dict[str, int | float], rules: tuple[Rule, ...], field: str
) -> str:
    """Return the message of the rule on a layout field that refuses most layouts of a stage; "" if none does.

    The target's own rules come before arithmetic.
    """
    names = {rule.name for rule in rules}
    refused = [pair for pair in _refused(stage, mesh, facts, rules) if f"{{{field}}}" in pair[1].message]
    refused.sort(key=lambda pair: pair[1].name not in names)
    return f"{_reason(stage, mesh, facts, refused)} [{refused[0][1].source}]" if refused else ""


def _refused(
    stage: Stage, mesh: MeshClass, facts: dict[str, int | float], rules: tuple[Rule, ...]
) -> list[tuple[int, Rule]]:
    """Return the rules that refuse layouts of a stage on a mesh with how many, the most first."""
    counts: dict[str, int] = {}
    legal_layouts(stage, mesh, facts, rules, counts)
    names = {rule.name: rule for rule in refusing_rules(stage, rules)}
    ranked = sorted(((count, name) for name, count in counts.items() if count), reverse=True)
    return [(count, names[name]) for count, name in ranked]


def _reason(stage: Stage, mesh: MeshClass, facts: dict[str, int | float], refused: list[tuple[int, Rule]]) -> str:
    """Return the message of the rule that refuses most, with the values that are known ("" if none refuses)."""
    return refused[0][1].message.format_map(_Shown(facts | _decided(stage, mesh))) if refused else ""


def _decided(stage: Stage, largest: MeshClass) -> dict[str, int | float]:
    """Return what is known of every layout: fields with one value left, and the largest mesh."""
    single = {name: values[0] for name, values in stage.layouts if len(values) == 1}
    numbers = {name: value for name, value in single.items() if isinstance(value, int | float)}
    return numbers | {"gpus": largest.gpus, "nodes": largest.nodes, "gpus_per_node": largest.gpus_per_node}


class _Shown(dict[str, int | float]):
    """Values for a rule's message; a layout field that varies prints as a letter."""

    def __missing__(self, key: str) -> str:
        return "x"
