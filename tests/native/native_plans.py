"""Plans for the native engine, bound by hand: a tiny pipeline, any placement and layouts, no search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rpegc.compiler import Options, setting_of, structures
from rpegc.frontend.load import pipeline_from_text
from rpegc.ir.graph import Graph, Op
from rpegc.plan import (
    Devices,
    Objective,
    Plan,
    PlannedStage,
    SearchRecord,
    Staleness,
    Target,
)
from rpegc.target import EngineLayout, Layout, Mesh, ShardedLayout

PIPELINE = """
name: tiny
algorithm: {algorithm}
models:
  actor: {{config: {model}/config.json, weights: {model}}}
{models}
data: {{train: {folder}/prompts.jsonl, prompt_key: prompt, answer_key: answer}}
workload:
  prompts_per_step: {prompts}
  samples_per_prompt: {samples}
  prompt_tokens: {{mean: 6, max: 16}}
  response_tokens: {{mean: 6, max: {longest}}}
  minibatches_per_step: {minibatches}
training:
  learning_rate: 1.0e-3
  clip: [0.2, 0.28]
  kl: {{coefficient: {kl}, where: {kl_where}}}
  total_steps: {steps}
  save_every: {save_every}
{reward}
cluster: {{hardware: h100-dgx, nodes: 1}}
allow: {{max_staleness: {staleness}}}
target: native
target_overrides: {{precision: fp32, debug: true{overrides}}}
"""

DEFAULTS = {
    "algorithm": "grpo",
    "models": "",
    "prompts": 4,
    "samples": 4,
    "longest": 8,
    "minibatches": 1,
    "kl": 0.0,
    "kl_where": "loss",
    "steps": 3,
    "save_every": 100,
    "staleness": 0,
    "overrides": "",
}


def pipeline_text(folder: Path, **changes: object) -> str:
    """Return the tiny pipeline as text; `folder` holds the model, prompts and reward file of `native_model`."""
    values = DEFAULTS | {"reward": f'reward: {{function: "{folder}/reward.py:score"}}', "model": folder / "model"}
    return PIPELINE.format(**(values | {"folder": folder} | changes))


def colocated(gpus: int) -> dict[str, Mesh]:
    """Return one mesh for all stages."""
    return {"*": Mesh("pool", 0, 1, 0, gpus)}


def apart(train: int, generate: int) -> dict[str, Mesh]:
    """Return a mesh for generation, and one for the rest."""
    return {"*": Mesh("train", 0, 1, 0, train), "rollout": Mesh("generate", 0, 1, train, generate)}


def bind(
    folder: Path,
    meshes: Mapping[str, Mesh],
    train: ShardedLayout | None = None,
    generate: EngineLayout | None = None,
    chunks: int = 1,
    seconds: Mapping[str, float] | None = None,
    partial: bool = False,
    **changes: object,
) -> Plan:
    """Return a plan of the tiny pipeline on these meshes ("*" = every other stage), with these layouts."""
    pipeline = pipeline_from_text(pipeline_text(folder, **changes))
    wanted = int(str(changes.get("staleness", 0)))
    graph = next(g for g in structures(setting_of(pipeline, Options(space="quick"))) if _staleness(g) == wanted)
    edges = tuple(
        replace(edge, chunks=chunks) if graph.stage(edge.source).op is Op.GENERATE else edge for edge in graph.edges
    )
    graph = replace(graph, edges=edges)
    if partial:
        graph = graph.recorded("partial-rollout", "stale", "rollout")
    train = train or ShardedLayout(micro_batch=8)
    used = {mesh.name: mesh for mesh in meshes.values()}
    gpus = max(mesh.first_gpu + mesh.gpus_per_node for mesh in used.values())
    starts = _starts(graph, seconds or {})
    stages = []
    for stage in graph.stages:
        mesh = meshes.get(stage.name, meshes["*"])
        layout: Layout | None = None
        if stage.op is Op.GENERATE:
            layout = generate or EngineLayout(replicas=mesh.gpus, max_sequences=8)
        elif stage.op.on_gpus:
            layout = train if mesh.gpus > 1 else ShardedLayout(micro_batch=8)
        name = mesh.name if stage.op.on_gpus else ""
        start, length = starts[stage.name]
        stages.append(PlannedStage(stage.name, stage.op.value, stage.model, name, layout, start, length, (1, 1), {}))
    period = (seconds or {}).get("period", max(start + length for start, length in starts.values()))
    return Plan(
        name=pipeline.name,
        target=Target("native", "1"),
        rpegc_version="0",
        seed=1,
        pipeline=pipeline.resolved(),
        graph=graph,
        knobs={},
        transitions=(),
        period_s=period,
        period_interval_s=(period, period),
        lower_bound_s=0.0,
        gap=1.0,
        objective=Objective("step_time", period),
        tokens_per_s_per_gpu=1.0,
        mfu=0.1,
        gpu_hours_per_step=1.0,
        usd_per_step=None,
        devices=Devices("h100-dgx", 1, gpus, gpus, 0),
        meshes=tuple(used.values()),
        stages=tuple(stages),
        memory=(),
        rewrites=(),
        staleness=Staleness(wanted + partial, 0.0, wanted + partial),
        search=SearchRecord("quick", "by hand", 1, 1, 1, 0, False),
    )


def _staleness(graph: Graph) -> int:
    distances = [edge.distance for edge in graph.edges if edge.carries_weights and edge.target == "rollout"]
    return distances[0] - 1


def _starts(graph: Graph, seconds: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return start and length of each stage: every stage after what it uses in the same step."""
    found: dict[str, tuple[float, float]] = {}
    while len(found) < len(graph.stages):
        for stage in graph.stages:
            before = [edge.source for edge in graph.into(stage.name) if edge.distance == 0]
            if stage.name not in found and all(name in found for name in before):
                found[stage.name] = (max((sum(found[n]) for n in before), default=0.0), seconds.get(stage.name, 1.0))
    return found
