"""The joint search at scale: PPO with four models on GH200 nodes, every structure, the batch growing with the machine.

    python benchmarks/scaling.py [--gpus 256 1024 16384] [--staleness 0] [--tolerance 0.01]

Real prices in space `quick`, no target's limits. Prints for each size: structures, the menu of mesh classes, layouts,
seconds of pricing and of search (wall and processor), plan, bound, gap, deterministic time and peak memory. Exit code
1 if a gap or the memory misses its bar; times are printed beside their bars and never fail a run.
"""

from __future__ import annotations

import argparse
import resource
import time

from rpegc.compiler import Options, Setting, setting_of, structures, unrestricted, variant_of
from rpegc.frontend.load import pipeline_from_text
from rpegc.search.choose import choose
from rpegc.search.solver.problem import Limit
from rpegc.search.solver.solve_ilp import solve
from rpegc.search.tabulate import TableCache

BARS_S = {256: 20, 1024: 30, 16384: 60}
"""Seconds of the whole search on two cores."""

PPO = """
name: ppo-four-models
algorithm: ppo
models:
  actor: {{config: meta-llama/Llama-3.1-8B-Instruct}}
  critic: {{config: meta-llama/Llama-3.1-8B-Instruct}}
  reward: {{like: critic}}
  reference: {{like: actor}}
workload:
  prompts_per_step: {prompts}
  prompt_tokens: {{mean: 300, p99: 900, max: 1024}}
  response_tokens: {{mean: 600, p99: 1800, max: 2048}}
  minibatches_per_step: 4
training: {{kl: {{coefficient: 0.01, where: reward}}}}
cluster: {{hardware: gh200-alps, nodes: {nodes}}}
allow: {{max_staleness: {staleness}, minimum_gain: 0.05}}
"""


def setting_at(gpus: int, staleness: int) -> Setting:
    """Return the setting of one size: 16 prompts a GPU."""
    text = PPO.format(prompts=16 * gpus, nodes=gpus // 4, staleness=staleness)
    return unrestricted(setting_of(pipeline_from_text(text), Options(space="quick")))


def measure(gpus: int, staleness: int, tolerance: float) -> bool:
    """Search one size, print its figures, and return whether gap and memory keep their bars."""
    wall, processor = time.perf_counter(), time.process_time()
    setting = setting_at(gpus, staleness)
    cache = TableCache()
    variants = tuple(variant_of(setting, graph, cache) for graph in structures(setting))
    priced, priced_processor = time.perf_counter() - wall, time.process_time() - processor
    wall, processor = time.perf_counter(), time.process_time()
    outcome = choose(variants, Limit(tolerance=tolerance, follow_up_time=0.0), solve, 0.05)
    searched, searched_processor = time.perf_counter() - wall, time.process_time() - processor
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    winner = outcome.winner
    cost = winner.cost if winner is not None and winner.cost else 0
    gap = 1 - outcome.bound_cost / cost if cost else 1.0
    menu = ", ".join(str(mesh) for mesh in setting.meshes)
    effort = sum(float(attempt.solution.statistics.get("deterministic_time", 0)) for attempt in outcome.attempts)
    names = [] if winner is None else [rewrite.name for rewrite in winner.variant.graph.rewrites]
    print(f"{gpus} GPUs, {len(variants)} structures, largest {max(v.problem.rows for v in variants):,} layouts")
    print(f"  menu of {len(setting.meshes)}: {menu}")
    print(f"  pricing {priced:.1f} s wall, {priced_processor:.1f} s processor")
    print(
        f"  search {searched:.1f} s wall, {searched_processor:.1f} s processor, {effort:.1f} deterministic; "
        f"bar for both {BARS_S.get(gpus, 60)} s"
    )
    print(f"  period {cost} ms, bound {outcome.bound_cost} ms, gap {gap:.2%} (bar {tolerance:.0%}); {', '.join(names)}")
    print(f"  peak memory {memory:.0f} MB (bar 1000)", flush=True)
    return gap <= tolerance + 1e-3 and memory < 1000


def main() -> int:
    """Measure every size asked for; return 1 if one misses gap or memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[256, 1024, 16384])
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=0.01)
    arguments = parser.parse_args()
    kept = [measure(gpus, arguments.staleness, arguments.tolerance) for gpus in arguments.gpus]
    return int(not all(kept))


if __name__ == "__main__":
    raise SystemExit(main())
