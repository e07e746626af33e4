"""A small pipeline compiles on every machine of the catalogue, and newer parts give shorter steps."""

from functools import cache

import pytest

from backends.site import load_site
from rpegc.compiler import Options, compile_pipeline, plan_files, setting_of
from rpegc.frontend.load import pipeline_from_text
from rpegc.hardware import load_machine, machine_names

GPU_MACHINES = tuple(name for name in machine_names() if not load_machine(name).accelerator.name.startswith("CPU"))

SMALL = """
name: small
algorithm: grpo
models: {{actor: {{config: Qwen/Qwen3-0.6B, weights: /models/Qwen3-0.6B}}}}
workload:
  prompts_per_step: 64
  samples_per_prompt: 8
  prompt_tokens: {{mean: 200, max: 512}}
  response_tokens: {{mean: 800, max: 2048}}
data: {{train: /data/train.parquet, val: /data/val.parquet}}
training: {{kl: {{coefficient: 0.0}}, total_steps: 10}}
reward: {{function: "reward.py:score"}}
cluster: {{hardware: {machine}, nodes: {nodes}}}
"""


@cache
def compiled(machine):
    nodes = 2 if load_machine(machine).gpus_per_node < 4 else 1
    pipeline = pipeline_from_text(SMALL.format(machine=machine, nodes=nodes))
    plan = compile_pipeline(pipeline, Options(space="quick"))
    return plan, plan_files(plan, setting_of(pipeline, Options(space="quick")))


@pytest.mark.parametrize("name", GPU_MACHINES)
def test_a_small_pipeline_compiles_to_a_launch(name):
    plan, files = compiled(name)
    assert 0 < plan.lower_bound_s <= plan.period_s < 100
    site = load_site(load_machine(name).site)
    script = files["launch/submit.sbatch"].content.decode()
    assert f"site {site.name}" in script
    assert ("#SBATCH --partition=workq\n" in script) == (name == "isambard")


def test_newer_parts_of_equal_number_are_faster():
    eight = [compiled(name)[0].period_s for name in ("b200", "h100-dgx", "a100-80g", "a100-40g")]
    assert eight == sorted(eight)
    assert compiled("h800")[0].period_s >= compiled("h100-dgx")[0].period_s
    assert compiled("isambard")[0].period_s == pytest.approx(compiled("gh200-alps")[0].period_s)
