"""One pipeline for each preset, small enough to compile in a second or two."""

from __future__ import annotations

from functools import cache

from rpegc.compiler import Options, compile_pipeline, plan_files, setting_of
from rpegc.emit import Files
from rpegc.frontend.load import pipeline_from_text
from rpegc.plan import Plan

ACTOR = "actor: {config: Qwen/Qwen3-4B, weights: /models/Qwen3-4B}"
REFERENCE = "reference: {like: actor}"
MODELS = {
    "ppo": f"{ACTOR}, {REFERENCE}, critic: {{config: Qwen/Qwen3-1.7B, weights: /models/critic}}",
    "dapo": ACTOR,
    "dr-grpo": ACTOR,
    "cispo": ACTOR,
    "distill": f"{ACTOR}, teacher: {{config: Qwen/Qwen3-14B, weights: /models/Qwen3-14B}}",
}
SAMPLES = {"dpo": 2, "remax": 1, "distill": 1, "reinforce++": 4}
KL = {"dpo": 0.1, "online-dpo": 0.1, **dict.fromkeys(("dapo", "dr-grpo", "cispo", "distill"), 0.0)}
UNJUDGED = ("dpo", "distill")
ON_VERL = ("cispo", "dapo", "distill", "dr-grpo", "grpo", "gspo", "ppo", "reinforce++", "remax", "rloo")
"""The presets that verl has."""


def preset_text(name: str, target: str = "verl", nodes: int = 4, **keys: str) -> str:
    """Return a pipeline of the preset; `keys` are added as they are, or stand in the place of ours."""
    lines = {
        "name": name.replace("++", "-plus-plus"),
        "algorithm": name,
        "models": f"{{{MODELS.get(name, f'{ACTOR}, {REFERENCE}')}}}",
        "data": "{train: /data/train.parquet, val: /data/val.parquet}",
        "workload": f"""
  prompts_per_step: 256
  samples_per_prompt: {SAMPLES.get(name, 8)}
  prompt_tokens: {{mean: 200, max: 1024}}
  response_tokens: {{mean: 1500, p99: 7000, max: 8192}}
  minibatches_per_step: 2""",
        "training": f"{{learning_rate: 1.0e-6, total_steps: 100, kl: {{coefficient: {KL.get(name, 0.001)}}}}}",
        "reward": '{function: "rewards/maths.py:score", seconds_per_sample: 0.02, workers_per_node: 64}',
        "cluster": f"{{hardware: gh200-alps, nodes: {nodes}, site: alps}}",
        "target": target,
    }
    if name in UNJUDGED:
        del lines["reward"]
    return "".join(f"{key}: {value}\n" for key, value in (lines | keys).items())


@cache
def preset_plan(name: str) -> tuple[Plan, Files]:
    """Return the plan of a preset on verl, and its files."""
    pipeline = pipeline_from_text(preset_text(name))
    options = Options(space="quick")
    plan = compile_pipeline(pipeline, options)
    return plan, plan_files(plan, setting_of(pipeline, options))
