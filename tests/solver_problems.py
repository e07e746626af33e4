"""Random small problems, the same for the same seed: what the ILP and the exhaustive reference are compared on."""

from __future__ import annotations

import numpy as np

from rpegc.search.solver.problem import Cell, Edge, GpuStage, HostStage, Problem, Stage, SyncStage, Template, TieGroup
from rpegc.target import MeshClass

CLUSTERS = (
    (MeshClass(4, 2), (MeshClass(4, 2), MeshClass(3, 2), MeshClass(1, 2))),
    (MeshClass(4, 2), (MeshClass(4, 2), MeshClass(4, 1), MeshClass(2, 2))),
    (MeshClass(1, 4), (MeshClass(1, 4), MeshClass(1, 2), MeshClass(1, 1))),
    (MeshClass(2, 4), (MeshClass(2, 4), MeshClass(1, 4), MeshClass(2, 2), MeshClass(1, 2))),
)
TREES = ((0,), (0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 0))


def random_problem(seed: int, stages: int = 3, rows: int = 2) -> Problem:
    """Return a problem of up to `stages` GPU stages with up to `rows` layouts on each mesh class."""
    rng = np.random.default_rng(seed)
    cluster, classes = CLUSTERS[rng.integers(len(CLUSTERS))]
    count = int(rng.integers(2, stages + 1))
    names = [f"stage{i}" for i in range(count)]
    ties = _ties(rng, names)
    streams = int(rng.choice((1, 2, 4))) if rng.random() < 0.5 else 1
    gpu = [GpuStage(name, _cells(rng, classes, rows, streams, len(ties))) for name in names]
    sharing = ((names[0], names[-1]),) if rng.random() < 0.4 else ()
    host = [HostStage(f"host{i}", int(rng.integers(1, 40))) for i in range(int(rng.integers(0, 3)))]
    if len(host) == 2 and rng.random() < 0.7:
        host[0] = HostStage("host0", host[0].milliseconds, ("host1",))
    edges = _edges(rng, names, [stage.name for stage in host], streams)
    syncs: list[Stage] = []
    for number in range(int(rng.integers(0, 3)) if count <= 3 else 1):
        source, target = (gpu[-1 - number % count], gpu[number % count])
        if source is not target:
            syncs.append(_sync(rng, f"sync{number}", source, target))
            distance = int(rng.integers(1, 4))
            edges += [Edge(source.name, f"sync{number}", 0), Edge(f"sync{number}", target.name, distance)]
    return Problem(
        cluster=cluster,
        mesh_classes=classes,
        stages=(*gpu, *host, *syncs),
        edges=tuple(edges),
        ladder=_ladder(rng, names),
        device_capacity=int(rng.integers(8, 34)),
        host_capacity=int(rng.integers(4, 14)),
        sharing=sharing,
        ties=ties,
    )


def _ties(rng: np.random.Generator, names: list[str]) -> tuple[TieGroup, ...]:
    if rng.random() < 0.3:
        return (TieGroup(tuple(names[:2]), same_mesh=bool(rng.random() < 0.5)),)
    return ()


def _cells(rng: np.random.Generator, classes: tuple[MeshClass, ...], rows: int, streams: int, ties: int) -> dict:
    cells: dict[int, Cell] = {}
    work = int(rng.integers(20, 200))
    for m, shape in enumerate(classes):
        n = int(rng.integers(1, rows + 1))
        time = np.maximum(1, work // shape.gpus + rng.integers(0, 40, n))
        curve = np.maximum(1, np.sort(rng.random((n, streams)), axis=1) * time[:, None]).astype(np.int64)
        curve[:, -1] = time
        signature = m * 100 + rng.integers(0, 2, n)
        cells[m] = Cell(
            milliseconds=time,
            completion=curve,
            weights=signature % 7 + 1,  # a function of the signature, as sharing asks
            resident=rng.integers(0, 6, n),
            working=rng.integers(0, 8, n),
            host=rng.integers(0, 5, n),
            signature=signature,
            ties=rng.integers(0, 2, (n, ties)),
            layout=np.arange(n),
        )
    return cells


def _edges(rng: np.random.Generator, gpu: list[str], host: list[str], streams: int) -> list[Edge]:
    """A random graph of distance 0 in declared order, closed by edges back of distance 1 to 3."""
    order = [gpu[0], *host, *gpu[1:]]
    edges: list[Edge] = []
    for position, name in enumerate(order[1:], start=1):
        source = order[int(rng.integers(position))]
        divides = [c for c in (1, 2, 4) if streams % c == 0]
        edges.append(Edge(source, name, 0, int(rng.choice(divides))))
    if len(order) > 2 and rng.random() < 0.5:
        edges.append(Edge(order[0], order[-1], int(rng.integers(0, 2))))
    ends = {edge.source for edge in edges}
    edges += [Edge(name, order[0], int(rng.integers(1, 4))) for name in order if name not in ends]
    edges += [Edge(name, name, 1) for name in gpu if rng.random() < 0.5]
    return edges


def _sync(rng: np.random.Generator, name: str, source: GpuStage, target: GpuStage) -> SyncStage:
    sides = [sorted({int(s) for cell in end.cells.values() for s in cell.signature}) for end in (source, target)]
    shape = (len(sides[0]), len(sides[1]))
    across, same = rng.integers(0, 30, shape), rng.integers(0, 15, shape)
    return SyncStage(name, source.name, target.name, tuple(sides[0]), tuple(sides[1]), across, same)


def _ladder(rng: np.random.Generator, names: list[str]) -> tuple[Template, ...]:
    tree = TREES[rng.integers(len(TREES))]
    if rng.random() < 0.35 and len(tree) > 1:
        homes = {name: tuple(sorted({int(g) for g in rng.integers(0, len(tree), 2)})) for name in names[:-1]}
        return (Template(tree, homes),)
    return tuple(Template(tree[:size]) for size in (1, 3, len(tree)) if size <= len(tree))
