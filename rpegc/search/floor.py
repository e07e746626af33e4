"""A cheap lower bound on a problem's period: what no choice of layouts can beat, known before anything is solved."""

from __future__ import annotations

import math
from fractions import Fraction

from rpegc.ir.cycles import Arc, maximum_cycle_ratio
from rpegc.search.solver.problem import GpuStage, HostStage, Problem


def floor_ms(problem: Problem) -> int:
    """Return milliseconds that every period reaches: device work over all GPUs, and cycles at minimum times.

    A streamed edge may start after the first of the source's chunks; syncs count as free.
    """
    shortest: dict[str, int] = {}
    first_chunk: dict[str, int] = {}
    work = Fraction(0)
    for stage in problem.stages:
        if isinstance(stage, GpuStage):
            fits = [(problem.mesh_classes[m], cell) for m, cell in stage.cells.items() if cell.rows]
            fits = [(mesh, cell) for mesh, cell in fits if mesh.gpus <= problem.cluster.gpus]
            if not fits:
                return 0
            shortest[stage.name] = min(int(cell.milliseconds.min()) for _, cell in fits)
            first_chunk[stage.name] = min(int(cell.completion[:, 0].min()) for _, cell in fits)
            work += min(mesh.gpus * int(cell.milliseconds.min()) for mesh, cell in fits)
        else:
            shortest[stage.name] = stage.milliseconds if isinstance(stage, HostStage) else 0
    arcs = [
        Arc(edge.source, edge.target, Fraction(_wait(edge.source, edge.chunks, shortest, first_chunk)), edge.distance)
        for edge in problem.edges
    ]
    ratio = maximum_cycle_ratio(arcs)
    cycles = ratio.period if ratio else Fraction(0)
    return math.ceil(max(cycles, work / problem.cluster.gpus))


def _wait(source: str, chunks: int, shortest: dict[str, int], first_chunk: dict[str, int]) -> int:
    return shortest[source] if chunks == 1 else min(first_chunk.get(source, 0), shortest[source] // chunks)
