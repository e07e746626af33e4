"""Whatever the search may choose, verl composes: plans drawn at random from the search's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verl_proofs import DRIVER, ONE_STEP_OFF_DRIVER, environment, run

from rpegc.compiler import Options, Setting, best_plan, bound_plan, plan_files, setting_of, structures, variant_of
from rpegc.emit import EmittedFile
from rpegc.errors import NothingFits
from rpegc.frontend.load import pipeline_from_text
from rpegc.plan import Plan
from rpegc.search.choose import Attempt, Outcome, Variant
from rpegc.search.solver import greedy
from rpegc.search.solver.problem import Cell, GpuStage, Limit, Problem
from rpegc.search.tabulate import TableCache

DRAWS = 5
"""Plans drawn of each pipeline, spread over its structures."""


@dataclass(frozen=True)
class Asked:
    """What a pipeline asks for; `roles` are models beside the actor."""

    algorithm: str = "grpo"
    hardware: str = "gh200-alps"
    nodes: int = 4
    model: str = "Qwen/Qwen3-8B"
    roles: tuple[str, ...] = ("reference",)
    lora_rank: int = 0
    where: str = "loss"
    longest: int = 8192
    max_staleness: int = 0
    prompts: int = 128
    changes: tuple[str, ...] = ()
    engine: str = ""
    partial: bool = False

    @property
    def text(self) -> str:
        """The pipeline file."""
        base = f"config: {self.model}, weights: /models/base"
        models = "".join(
            f"  {role}: {{{'config: Qwen/Qwen2.5-1.5B, weights: /judge' if role == 'reward' else 'like: actor'}}}\n"
            for role in self.roles
        )
        reward = "" if "reward" in self.roles else 'reward: {function: "r.py:score", workers_per_node: 500}\n'
        return (
            f"name: drawn\nalgorithm: {self.algorithm}\nmodels:\n  actor: {{{base}}}\n{models}"
            f"data: {{train: /data/train.parquet}}\n"
            f"workload:\n  prompts_per_step: {self.prompts}\n  samples_per_prompt: 8\n  minibatches_per_step: 2\n"
            f"  prompt_tokens: {{mean: 200, max: 512}}\n"
            f"  response_tokens: {{mean: {self.longest // 5}, max: {self.longest}}}\n"
            f"training:\n  lora_rank: {self.lora_rank}\n  total_steps: 10\n  learning_rate: 1e-6\n"
            f"  kl: {{coefficient: {0.001 if 'reference' in self.roles else 0.0}, where: {self.where}}}\n{reward}"
            f"{f'engine: {self.engine}' if self.engine else ''}\n"
            f"cluster: {{hardware: {self.hardware}, nodes: {self.nodes}}}\n"
            f"allow: {{max_staleness: {self.max_staleness}, partial_rollout: {str(self.partial).lower()}, "
            f"model_changes: [{', '.join(self.changes)}]}}\n"
        )


EVERYTHING = ("critic", "reward", "reference")
REUSE = ("reuse-rollout-logprobs",)

ASKED: tuple[Asked, ...] = (
    Asked(),
    Asked(nodes=1, model="Qwen/Qwen2.5-1.5B", roles=()),
    Asked(nodes=16, longest=16384, max_staleness=1, prompts=256, changes=REUSE),
    Asked(nodes=8, roles=(), max_staleness=1, hardware="h100-dgx"),
    Asked(nodes=1, hardware="h100-dgx", lora_rank=32),
    Asked(nodes=2, lora_rank=64, where="reward", longest=2048),
    Asked(nodes=3, roles=("reference", "reward"), model="Qwen/Qwen2.5-1.5B", prompts=384, changes=REUSE),
    Asked("ppo", nodes=4, roles=("critic",), model="Qwen/Qwen2.5-1.5B"),
    Asked("ppo", nodes=8, roles=EVERYTHING, where="reward", changes=REUSE),
    Asked("ppo", nodes=2, roles=EVERYTHING, hardware="h100-dgx", longest=2048),
    Asked(nodes=4, model="Qwen/Qwen3-30B-A3B", hardware="h100-dgx", max_staleness=1),
    Asked(nodes=16, model="Qwen/Qwen3-32B", roles=(), prompts=256),
    Asked(nodes=16, model="Qwen/Qwen3-30B-A3B", prompts=256, engine="megatron", max_staleness=1),
    Asked("ppo", nodes=8, roles=EVERYTHING, where="reward", engine="megatron", longest=16384),
    Asked(nodes=2, hardware="h100-dgx", lora_rank=32, engine="megatron"),
    Asked(max_staleness=1, partial=True),
    Asked("ppo", nodes=8, roles=EVERYTHING, where="reward", max_staleness=1, partial=True),
)


def shuffled(problem: Problem, random: np.random.Generator) -> Problem:
    """Return the problem with times by lot: its best plan is then a plan by lot that fits the machine."""

    def by_lot(cell: Cell) -> Cell:
        parts = cell.completion.shape[1]
        milliseconds = random.integers(10**3, 10**6, cell.rows)
        completion = -(-milliseconds[:, None] * np.arange(1, parts + 1) // parts)
        return replace(cell, milliseconds=milliseconds, completion=completion)

    stages = tuple(
        replace(stage, cells={index: by_lot(cell) for index, cell in stage.cells.items()})
        if isinstance(stage, GpuStage)
        else stage
        for stage in problem.stages
    )
    return replace(problem, stages=stages)


def drawn(setting: Setting, variant: Variant, seed: int) -> Plan | None:
    """Return one legal plan of a structure by lot, bound as the compiler binds the best; None if none fits."""
    solution = greedy.solve(shuffled(variant.problem, np.random.default_rng(seed)), Limit())
    if solution.choice is None:
        return None
    attempt = Attempt(variant, 1, solution, None)
    return bound_plan(setting, Outcome(attempt, 0, (attempt,)))


def plans(draws: int) -> Iterator[tuple[Asked, Plan, dict[str, EmittedFile]]]:
    """Yield plans by lot of every structure of every pipeline, with their files: emission refuses none."""
    for asked in ASKED:
        setting = setting_of(pipeline_from_text(asked.text), Options(space="quick"))
        cache = TableCache()
        graphs = structures(setting)
        for graph in graphs:
            try:
                variant = variant_of(setting, graph, cache)
            except NothingFits:
                continue
            for seed in range(max(1, draws // len(graphs))):
                plan = drawn(setting, variant, seed)
                if plan is not None:
                    yield asked, plan, plan_files(plan, setting)


Drawn = list[tuple[Asked, Plan, dict[str, Any]]]


def written(draws: int, folder: Path) -> Drawn:
    """Return distinct plans by lot, each with the request that has verl read its overrides from a file."""
    found: Drawn = []
    texts: set[bytes] = set()
    for asked, plan, files in plans(draws):
        content = files["launch/verl_overrides.txt"].content
        if content in texts:
            continue
        texts.add(content)
        file = folder / f"{len(found)}.txt"
        file.write_bytes(content)
        module = ONE_STEP_OFF_DRIVER if plan.graph.mode == "one-step-off" else DRIVER
        found.append((asked, plan, {"module": module, "overrides": str(file), "select": ["trainer.nnodes"]}))
    return found


@pytest.mark.verl_compose
def test_every_plan_of_the_search_composes(tmp_path: Path) -> None:
    seen = written(DRAWS, tmp_path)
    requests = [request for _, _, request in seen]
    findings = run(environment("compose", limit_s=300), "compose.py", requests, tmp_path, limit_s=300)
    assert [(*seen[i][:2], found["error"]) for i, found in enumerate(findings) if not found["ok"]] == []
    assert len(requests) >= 60
    assert {asked for asked, _, _ in seen} == set(ASKED), "some pipeline has no plan that fits"
    assert {(plan.graph.mode, plan.graph.engine) for _, plan, _ in seen} == {
        (mode, engine) for mode in ("sync", "colocate-async", "one-step-off") for engine in ("fsdp", "megatron")
    }
    assert len({found["values"]["trainer.nnodes"] for found in findings}) > 4


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        (Asked(max_staleness=1, partial=True), True),
        (Asked("ppo", nodes=8, roles=EVERYTHING, max_staleness=1, partial=True), True),
        (Asked(max_staleness=1), False),
        (Asked("remax", max_staleness=1, partial=True), False),  # runs on the trainer before V1
        (Asked("dapo", roles=(), max_staleness=1, partial=True), False),
    ],
)
def test_samples_carry_over_where_v1_has_a_trainer_for_it(asked: Asked, offered: bool) -> None:
    graphs = structures(setting_of(pipeline_from_text(asked.text), Options(space="quick")))
    modes = {(graph.mode, any(rewrite.name == "partial-rollout" for rewrite in graph.rewrites)) for graph in graphs}
    assert (("colocate-async", True) in modes) == offered
    assert {mode for mode, carries in modes if carries} <= {"colocate-async"}


@pytest.mark.proof
def test_the_search_chooses_colocate_async_where_it_pays() -> None:
    """PPO has no other mode that overlaps the tail of generation."""
    asked = Asked("ppo", nodes=8, roles=("critic", "reference"), longest=16384, max_staleness=1, partial=True)
    plan = best_plan(setting_of(pipeline_from_text(asked.text), Options(space="quick")))
    assert plan.graph.mode == "colocate-async"
    assert plan.staleness.bound == plan.staleness.max == 1
    assert not any("partial_rollout" in warning for warning in plan.warnings)


MANY_DRAWS = 22
"""Draws of each pipeline for the proof: some fall together, some structures fit nowhere, 300 plans are left."""


@pytest.mark.proof
def test_three_hundred_plans_of_the_search_are_valid(tmp_path: Path) -> None:
    """Verl composes each (L0), accepts it in `validate_config` and builds every dataclass from it (L1)."""
    seen = written(MANY_DRAWS, tmp_path)
    requests = [request for _, _, request in seen]
    findings = run(environment("validate", limit_s=900), "validate.py", requests, tmp_path, limit_s=1200)
    assert [(seen[i][0], found["error"]) for i, found in enumerate(findings) if not found["ok"]] == []
    assert len(requests) >= 300
    for (_, plan, _), found in zip(seen, findings, strict=True):
        values = found["values"]
        assert values["actor_strategy"] == ("megatron" if plan.graph.engine == "megatron" else "fsdp2")
        for part in ("reference", "critic"):  # one set of process groups a worker: the same sizes for every model
            if f"{part}_sizes" in values:
                assert values[f"{part}_sizes"][:6] == values["actor_sizes"][:6]
