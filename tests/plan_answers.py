"""One small pipeline compiled once, and answers about made-up figures, for the tests of explain, compare and sweep."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache

from rich.console import Console

from rpegc.compiler import compile_pipeline
from rpegc.frontend.load import pipeline_from_text
from rpegc.plan import Plan
from rpegc.setting import Options

SMALL = """
name: small
algorithm: grpo
models:
  actor: {config: Qwen/Qwen3-8B}
  reference: {like: actor}
workload:
  prompts_per_step: 64
  samples_per_prompt: 8
  prompt_tokens: {mean: 100, max: 512}
  response_tokens: {mean: 1000, p99: 4000, max: 8192}
  minibatches_per_step: 2
training: {kl: {coefficient: 0.001}}
reward: {seconds_per_sample: 0.01}
cluster: {hardware: gh200-alps, nodes: 2}
"""
QUICK = Options(space="quick", tolerance=0.05)


@cache
def small_plan() -> Plan:
    """Return the plan of the small pipeline."""
    return compile_pipeline(pipeline_from_text(SMALL), QUICK)


def printed(show: Callable[[Console], None]) -> str:
    """Return what a report prints, without trailing blanks."""
    out = io.StringIO()
    show(Console(file=out, width=120, highlight=False, no_color=True))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
