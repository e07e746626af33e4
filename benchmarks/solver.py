"""How fast the ILP plans PPO on 64 GPUs: synthetic tables of the true shape and size, from roofline-like formulas.

Actor and reference have 70 billion parameters, critic and reward model 8 billion; 16 nodes of four GPUs; six GPU
stages, one function, two weight syncs. Run `python benchmarks/solver.py [--staleness 1] [--colocated]`.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time

import numpy as np

from rpegc.search.solver.problem import Cell, Edge, GpuStage, HostStage, Limit, Problem, SyncStage, Template
from rpegc.search.solver.solve_ilp import solve
from rpegc.target import IntArray, MeshClass

UNIT_GIB = 0.5
NODE_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
SLICES = (MeshClass(16, 1), MeshClass(16, 2), MeshClass(16, 3), MeshClass(1, 1), MeshClass(1, 2))
CLASSES = tuple(MeshClass(nodes, 4) for nodes in NODE_COUNTS) + SLICES
TOKENS = 4096 * 2300.0
GPU_FLOPS = 550e12

UNRESTRICTED = (
    Template((0,)),
    Template((0, 0, 0)),
    Template((0, 0, 0, 0)),
    Template((0, 0, 0, 1, 1)),
    Template((0, 0, 0, 1, 1, 2, 2)),
)


def sharded_cell(m: int, billions: float, passes: float, trained: bool) -> Cell:
    """Rows (tp, pp, zero or dp sharding, micro batch, recompute, offload) of a training or forward stage."""
    gpus, rows = CLASSES[m].gpus, []
    for tp, pp, shard, micro, recompute, offload in itertools.product(
        (1, 2, 4), (1, 2, 4, 8), (1, 0), (1, 2, 4, 8), (0, 1, 2), (0, 1)
    ):
        if gpus % (tp * pp) or tp > CLASSES[m].gpus_per_node or (not trained and recompute):
            continue
        dp = gpus // (tp * pp)
        sharded = dp if shard else 1
        flops = 2 * billions * 1e9 * TOKENS * passes * (1, 1.08, 1.33)[recompute]
        efficiency = 0.62 * micro / (micro + 0.25 * tp) / (1 + 0.09 * (tp - 1)) / (1 + (pp - 1) * micro / 48)
        seconds = flops / (GPU_FLOPS * gpus * efficiency)
        seconds += (
            billions * 2 / tp / pp / 60 * (3.0 if shard else 1.0) * (TOKENS / 2300 / dp / micro / 220 if shard else 1)
        )
        seconds += offload * billions * (12 if trained else 2) / gpus / 50
        weights = billions * 2 / 1.07 / tp / pp / sharded
        resident = billions * 16 / 1.07 / tp / pp / (dp if trained and shard else max(1, dp)) if trained else 0.2
        activations = billions**0.5 * micro * (2.2, 1.1, 0.35)[recompute] / tp * (1 if trained else 0.4)
        working = activations + 1.5 + (billions * 2 / tp / pp / 20 if shard else 0)
        host = 0.0
        if offload:
            host = (resident + weights) * CLASSES[m].gpus_per_node
            working += resident + weights
            resident, weights = 0.3, 0.0
        rows.append((seconds, weights, resident, working, host, tp * 64 + pp * 4 + shard * 2 + offload))
    return cell(m, rows)


def engine_cell(m: int, billions: float) -> Cell:
    """Rows (tp, pp, sequences, memory share, sleep) of a generation stage."""
    gpus, rows = CLASSES[m].gpus, []
    for tp, pp, sequences, share, batched, sleep in itertools.product(
        (1, 2, 4, 8), (1, 2, 4), (64, 128, 256, 512), (0.4, 0.5, 0.6, 0.7, 0.8, 0.9), (2048, 8192), (0, 1)
    ):
        weights = billions * 2 / 1.07 / tp / pp
        kv = share * 89 - weights - 4
        if gpus % (tp * pp) or kv < 2:
            continue
        replicas = gpus // (tp * pp)
        batch = min(sequences, 4096 / replicas, kv * tp * pp / 0.38)
        step = 1e-3 * (2.5 + 0.22 * tp + 6 * (pp - 1)) + weights / 3300 + batch * 0.35 / tp / pp / 3300
        seconds = 4096 / replicas / batch * 2000 * step * 1.15 + 2 * billions * TOKENS * 0.3 / (GPU_FLOPS * 0.5 * gpus)
        seconds *= 1 + 0.02 * (batched == 2048)
        seconds += sleep * weights / 40
        held, working, host = (0.8, share * 89, weights * 4) if sleep else (share * 89, 1.0, 0.0)
        rows.append((seconds, 0.0, held, working, host, 4096 + tp * 16 + pp))
    return cell(m, rows)


def cell(m: int, rows: list[tuple[float, ...]]) -> Cell:
    """Quantise rows of (seconds, weights, resident, working GiB, host GiB, signature)."""
    table = np.asarray(rows, dtype=np.float64).reshape(-1, 6)
    milliseconds = np.maximum(1, np.ceil(table[:, 0] * 1000)).astype(np.int64)
    units = np.ceil(table[:, 1:5] / UNIT_GIB).astype(np.int64)
    signature = table[:, 5].astype(np.int64) + m * 100_000
    empty = np.zeros((len(table), 0), dtype=np.int64)
    curve = milliseconds[:, None]
    return Cell(milliseconds, curve, *units.T, signature, empty, np.arange(len(table)))


def stage(name: str, cells: dict[int, Cell]) -> GpuStage:
    return GpuStage(name, {m: rows for m, rows in cells.items() if rows.rows})


def sync(name: str, source: GpuStage, target: GpuStage, billions: float) -> SyncStage:
    """Cost of a weight move: across meshes through the network, on one mesh less the more the two layouts agree."""

    def listed(end: GpuStage) -> list[int]:
        return sorted({int(number) for rows in end.cells.values() for number in rows.signature})

    sources, targets = listed(source), listed(target)
    i, j = np.asarray(sources)[:, None], np.asarray(targets)[None, :]
    gpus = np.asarray([shape.gpus for shape in CLASSES])
    moved = billions * 2e3 / 22 / np.minimum(gpus[i // 100_000], gpus[j // 100_000])
    across = 400 + moved * (1 + 0.05 * ((i + j) % 7))
    same = np.where(i == j, 0, 150 + moved * (0.3 + 0.1 * ((i * 3 + j) % 5)))
    integers: tuple[IntArray, IntArray] = (across.astype(np.int64), same.astype(np.int64))
    return SyncStage(name, source.name, target.name, tuple(sources), tuple(targets), *integers)


def ppo(staleness: int = 0, ladder: tuple[Template, ...] = UNRESTRICTED) -> Problem:
    """PPO with weight distance 1 + `staleness`."""
    classes = range(len(CLASSES))
    generate = stage("generate", {m: engine_cell(m, 70) for m in classes})
    reference = stage("reference", {m: sharded_cell(m, 70, 1, False) for m in classes})
    values = stage("values", {m: sharded_cell(m, 8, 1, False) for m in classes})
    reward = stage("reward", {m: sharded_cell(m, 8, 1, False) for m in classes})
    train_actor = stage("train_actor", {m: sharded_cell(m, 70, 3, True) for m in classes})
    train_critic = stage("train_critic", {m: sharded_cell(m, 8, 3, True) for m in classes})
    actor_sync = sync("actor_sync", train_actor, generate, 70)
    critic_sync = sync("critic_sync", train_critic, values, 8)
    edges = [Edge("generate", name) for name in ("reference", "values", "reward", "verify")]
    for name in ("reference", "values", "reward", "verify"):
        edges += [Edge(name, "train_actor"), Edge(name, "train_critic")]
    edges += [Edge("train_actor", "actor_sync"), Edge("actor_sync", "generate", 1 + staleness)]
    edges += [Edge("train_critic", "critic_sync"), Edge("critic_sync", "values", 1)]
    edges += [Edge("train_actor", "train_actor", 1), Edge("train_critic", "train_critic", 1)]
    stages = (generate, reference, values, reward, HostStage("verify", 6000), train_actor, train_critic)
    return Problem(
        cluster=MeshClass(16, 4),
        mesh_classes=CLASSES,
        stages=(*stages, actor_sync, critic_sync),
        edges=tuple(edges),
        ladder=ladder,
        device_capacity=int(88 / UNIT_GIB),
        host_capacity=int(440 / UNIT_GIB),
        sharing=(("train_critic", "values"),),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--colocated", action="store_true", help="one mesh for all stages")
    parser.add_argument("--follow-up-time", type=float, default=Limit().follow_up_time)
    parser.add_argument("--tolerance", type=float, default=0.01)
    arguments = parser.parse_args()
    names = [s.name for s in ppo().gpu_stages]
    colocated = (Template((0, 0), dict.fromkeys(names, (1,))),)
    problem = ppo(arguments.staleness, colocated if arguments.colocated else UNRESTRICTED)
    begin = time.perf_counter()
    solution = solve(problem, Limit(tolerance=arguments.tolerance, follow_up_time=arguments.follow_up_time))
    seconds = time.perf_counter() - begin
    for name, value in solution.statistics.items():
        print(f"{name:20} {value:,.6g}")
    print(f"status {solution.status}, T {solution.period_ms} ms, bound {solution.bound} ms, gap {solution.gap:.2%}")
    print(f"cut short: {', '.join(solution.limit_hit) or 'nothing'}")
    print(f"{seconds:.1f} s, peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    if solution.choice is not None:
        for name, node in solution.choice.nodes.items():
            m = solution.choice.mesh_classes[node]
            shape = "?" if m is None else str(CLASSES[m])
            print(f"  {name:14} node {node} ({shape}) {solution.choice.milliseconds[name]} ms")


if __name__ == "__main__":
    main()
