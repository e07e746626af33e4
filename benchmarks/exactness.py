"""Compare the integer program with exhaustive search on random pipelines with all structures, and print the count.

    python benchmarks/exactness.py [--problems 500] [--seed 1]

A problem is one structure of a random pipeline (PPO or GRPO, random lengths and counts, 2 nodes), with its true prices
and a few random layouts a stage (capped tables: exhaustive search tries every mesh, layout, order and winding). Any
difference ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rpegc.compiler import Options, setting_of, structures, unrestricted, variant_of
from rpegc.frontend.load import pipeline_from_text
from rpegc.search.solver import exhaustive, solve_ilp
from rpegc.search.solver.problem import GpuStage, Limit, Problem, Stage, Status
from rpegc.search.tabulate import TableCache

EXACT = Limit(tolerance=0.0, follow_up_time=0.0, master_time=4.0, total_time=12.0)
"""A program that these limits end proves nothing; it is counted, and its plan must not beat the reference's."""

TEXT = """
name: random
algorithm: {algorithm}
models: {models}
workload:
  prompts_per_step: {prompts}
  samples_per_prompt: {samples}
  prompt_tokens: {{mean: 200, max: 512}}
  response_tokens: {{mean: {mean}, max: {longest}}}
  minibatches_per_step: {minibatches}
training: {{kl: {{coefficient: 0.01, where: {where}}}}}
reward: {{seconds_per_sample: {seconds}}}
cluster: {{hardware: gh200-alps, nodes: 2}}
allow:
  max_staleness: {staleness}
  partial_rollout: {partial}
  minimum_gain: 0.0
  model_changes: [quantize-collectives, quantize-rollout, reuse-rollout-logprobs, share-actor-critic, stream-rollout]
"""
PPO_MODELS = "{actor: {config: Qwen/Qwen2.5-1.5B}, critic: {config: Qwen/Qwen2.5-0.5B}, reference: {like: actor}}"
GRPO_MODELS = "{actor: {config: Qwen/Qwen2.5-1.5B}, reference: {like: actor}}"


def random_text(rng: np.random.Generator) -> str:
    """Return a random pipeline."""
    ppo = bool(rng.random() < 0.6)
    staleness = int(rng.choice((0, 0, 1)))
    return TEXT.format(
        algorithm="ppo" if ppo else "grpo",
        models=PPO_MODELS if ppo else GRPO_MODELS,
        prompts=int(rng.choice((128, 256, 512))),
        samples=1 if ppo else int(rng.choice((4, 8))),
        mean=int(rng.choice((400, 1000, 2000))),
        longest=int(rng.choice((4096, 8192))),
        minibatches=int(rng.choice((1, 2))),
        where=str(rng.choice(("loss", "reward"))),
        seconds=float(rng.choice((0.0, 0.05, 1.0))),
        staleness=staleness,
        partial=str(staleness > 0).lower(),
    )


def problems(count: int, seed: int) -> Iterator[tuple[str, Problem]]:
    """Yield so many capped problems, each with the passes that made its structure; 25 a pipeline."""
    rng = np.random.default_rng(seed)
    made = 0
    while made < count:
        setting = unrestricted(setting_of(pipeline_from_text(random_text(rng)), Options(space="quick")))
        graphs = structures(setting)
        cache = TableCache()
        for index in rng.choice(len(graphs), size=min(25, count - made)).tolist():
            names = sorted({rewrite.name for rewrite in graphs[index].rewrites})
            yield " ".join(names), capped(variant_of(setting, graphs[index], cache).problem, rng)
            made += 1


def capped(problem: Problem, rng: np.random.Generator) -> Problem:
    """Return the problem with one random layout of each stage on two mesh classes, on the first rung of its ladder.

    One stage, drawn at random, keeps three layouts on each.
    """
    classes = (int(rng.integers(len(problem.mesh_classes) - 1)), len(problem.mesh_classes) - 1)
    gpu = [stage.name for stage in problem.gpu_stages]
    rich = gpu[int(rng.integers(len(gpu)))]
    stages: list[Stage] = []
    for stage in problem.stages:
        if not isinstance(stage, GpuStage):
            stages.append(stage)
            continue
        cells = {}
        for m in classes:
            if m in stage.cells:
                rows = min(3 if stage.name == rich else 1, stage.cells[m].rows)
                cells[m] = stage.cells[m].take(np.sort(rng.choice(stage.cells[m].rows, size=rows, replace=False)))
        stages.append(GpuStage(stage.name, cells))
    return replace(problem, stages=tuple(stages), ladder=(problem.ladder[0],))


def main() -> int:
    """Compare, print, and return 1 if there was a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    passes: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    differences = 0
    begin = time.perf_counter()
    spent = {"exhaustive": 0.0, "ILP": 0.0}
    print(f"comparing {arguments.problems} problems", flush=True)
    for done, (names, problem) in enumerate(problems(arguments.problems, arguments.seed), start=1):
        start = time.process_time()
        reference = exhaustive.solve(problem, EXACT)
        middle = time.process_time()
        solution = solve_ilp.solve(problem, EXACT)
        spent["exhaustive"] += middle - start
        spent["ILP"] += time.process_time() - middle
        ended = solution.status is Status.LIMIT
        optimum, found = reference.period_ms, solution.period_ms
        holds = solution.bound <= (optimum or 0) <= (found or optimum or 0) if ended else optimum == found
        if not holds:
            differences += 1
            print(
                f"difference: exhaustive {reference.period_ms}, ILP {solution.period_ms} ({solution.status}): {names}"
            )
        passes.update(names.split())
        statuses[str(solution.status)] += 1
        if done % 25 == 0:
            print(f"  {done} compared, {differences} differences, {time.perf_counter() - begin:.0f} s", flush=True)
    for name, times in sorted(passes.items()):
        print(f"  {name:24} in {times} problems")
    outcome = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    print("processor seconds: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in spent.items()))
    print(f"{arguments.problems} problems ({outcome}), {differences} differences, {time.perf_counter() - begin:.0f} s")
    return int(differences > 0)


if __name__ == "__main__":
    raise SystemExit(main())
