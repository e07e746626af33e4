"""The plans of the examples, compiled once for all tests that look at them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rpegc.compiler import Options, compile_pipeline, plan_files, setting_of
from rpegc.emit import Files
from rpegc.frontend.load import load_pipeline, pipeline_from_text
from rpegc.plan import Plan

EXAMPLES = tuple(sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.yaml")))

ONE_STEP_OFF = """
name: one-step-off
algorithm: grpo
models:
  actor: {config: Qwen/Qwen3-8B, weights: /models/Qwen3-8B}
workload:
  prompts_per_step: 64
  samples_per_prompt: 16
  prompt_tokens: {mean: 200, max: 512}
  response_tokens: {mean: 3000, p99: 11000, max: 16384}
  minibatches_per_step: 4
data: {train: /data/train.parquet, val: /data/val.parquet}
training: {kl: {coefficient: 0.0}, total_steps: 10}
reward: {function: "reward.py:score"}
cluster: {hardware: gh200-alps, nodes: 4, site: alps}
allow: {max_staleness: 1, minimum_gain: 0.0}
"""
"""A pipeline whose best plan separates the rollout: the longest responses take as long on half of the GPUs."""


@cache
def example(path: Path, space: str = "quick") -> Plan:
    """Return the plan of an example."""
    return compile_pipeline(load_pipeline(path), Options(space=space))


@cache
def example_files(path: Path, space: str = "quick") -> Files:
    """Return the files of an example's compiled folder."""
    return plan_files(example(path, space), setting_of(load_pipeline(path), Options(space=space)))


@cache
def separate_rollout() -> tuple[Plan, Files]:
    """Return the plan and files of a pipeline that runs one step off."""
    pipeline = pipeline_from_text(ONE_STEP_OFF)
    options = Options(space="quick")
    plan = compile_pipeline(pipeline, options)
    return plan, plan_files(plan, setting_of(pipeline, options))
