"""Composite stages: stages that the graph keeps apart by name and model, and that run as one unit of time.

Members carry the attribute `fused` = the unit's name. They start together, end together and sit on one mesh under one
layout; what each of them reads and makes is untouched, so that fusing never changes an update.
"""

from __future__ import annotations

from dataclasses import replace

from rpegc.ir.graph import Edge, Graph, Stage

FUSED = "fused"


def unit_of(stage: Stage) -> str:
    """Return the name of the unit that a stage runs in: its composite, or itself."""
    return str(stage.attribute(FUSED)) or stage.name


def unit_names(graph: Graph) -> dict[str, str]:
    """Return the unit of every stage, by stage name."""
    return {stage.name: unit_of(stage) for stage in graph.stages}


def units(graph: Graph) -> dict[str, tuple[Stage, ...]]:
    """Return the members of every unit, in the order of the graph; a stage of its own is a unit of one."""
    found: dict[str, tuple[Stage, ...]] = {}
    for stage in graph.stages:
        found[unit_of(stage)] = (*found.get(unit_of(stage), ()), stage)
    return found


def composites(graph: Graph) -> dict[str, tuple[Stage, ...]]:
    """Return the units of more than one stage."""
    return {name: members for name, members in units(graph).items() if len(members) > 1}


def contracted(graph: Graph) -> Graph:
    """Return the graph of units, for questions of time: each composite is one stage, equal edges are one.

    Of several edges between two units with one distance, the one that waits longest stays (fewest chunks).
    """
    unit = unit_names(graph)
    stages = tuple(replace(members[0], name=name) for name, members in units(graph).items())
    edges: dict[tuple[str, str, int], Edge] = {}
    for edge in graph.edges:
        moved = replace(edge, source=unit[edge.source], target=unit[edge.target])
        if moved.source == moved.target and moved.distance > 1:
            continue  # a unit waits for itself of the step before anyway
        key = (moved.source, moved.target, moved.distance)
        if key not in edges or moved.chunks < edges[key].chunks:
            edges[key] = moved
    return replace(graph, stages=stages, edges=tuple(edges.values()))
