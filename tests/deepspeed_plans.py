"""Plans made by hand for the deepspeed backend's tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from verl_plans import pipeline, plan_of, planned

from backends.deepspeed.capabilities import COLOCATE, SERVER, VERSION
from rpegc.plan import Devices, Plan, Target
from rpegc.target import EngineLayout, Mesh, ShardedLayout

GPUS_PER_NODE = 4


def document(**changes: Any) -> dict[str, Any]:
    """Return a resolved GRPO pipeline for TRL; dotted keys change single entries."""
    return pipeline(**{"target": "deepspeed", "allow": {"max_staleness": 0}, **changes})


def counted(gpus: int, **changes: Any) -> ShardedLayout:
    """Return a layout that shards over all GPUs and counts sequences."""
    return replace(ShardedLayout(dp=gpus, zero=3, shard_size=gpus, micro_batch=4), **changes)


def trl_plan(
    pool: Mesh, rollout: Mesh, engine: EngineLayout, layout: ShardedLayout, nodes: int, gpus: int, pipe: dict[str, Any]
) -> Plan:
    """Return a plan whose stages are those that TRL runs for this pipeline."""
    passive = replace(layout, recompute="none")
    lora = bool(pipe["training"]["lora_rank"])
    several = pipe["workload"]["minibatches_per_step"] * pipe["training"]["epochs_per_batch"] > 1
    penalised = bool(pipe["training"]["kl"]["coefficient"])
    role = "actor" if lora else "reference"
    stages = [
        planned("rollout", "generate", "actor", rollout.name, engine),
        *([planned("old_logprobs", "forward", "actor", pool.name, passive)] if several else []),
        *([planned("reference", "forward", role, pool.name, passive)] if penalised else []),
        planned("verify", "function", "", "", None),
        planned("train_actor", "train", "actor", pool.name, layout),
    ]
    meshes = (pool,) if rollout == pool else (pool, rollout)
    mode = COLOCATE if rollout == pool else SERVER
    plan = plan_of(pipe, stages, meshes, nodes, mode=mode, adapter_off=("reference",) if lora else ())
    edges = tuple(replace(edge, target="rollout") for edge in plan.graph.edges)
    return replace(
        plan,
        target=Target("deepspeed", VERSION),
        graph=replace(plan.graph, edges=edges),
        devices=Devices("gh200-alps", nodes, nodes * gpus, gpus, 0),
    )


def colocated(
    nodes: int = 4,
    gpus_per_node: int = GPUS_PER_NODE,
    hardware: str = "gh200-alps",
    layout: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    **changes: Any,
) -> Plan:
    """Return GRPO with everything on all GPUs."""
    pool = Mesh("all", 0, nodes, 0, gpus_per_node)
    pipe = document(**changes)
    share = pipe["workload"]["prompts_per_step"] * pipe["workload"]["samples_per_prompt"] // pool.gpus
    runs = EngineLayout(replicas=pool.gpus, max_sequences=share, memory_fraction=0.5, batched_tokens=4096, offload=True)
    rollout = replace(runs, **(engine or {}))
    plan = trl_plan(pool, pool, rollout, counted(pool.gpus, **(layout or {})), nodes, gpus_per_node, pipe)
    return replace(plan, devices=replace(plan.devices, hardware=hardware))


def served(nodes: int = 4, tp: int = GPUS_PER_NODE, **changes: Any) -> Plan:
    """Return GRPO whose last node serves the engine; the others train."""
    pool, server = Mesh("train", 0, nodes - 1, 0, GPUS_PER_NODE), Mesh("server", nodes - 1, 1, 0, tp)
    engine = EngineLayout(replicas=1, tp=tp, max_sequences=512, memory_fraction=0.9, batched_tokens=8192)
    pipe = document(**{"workload.prompts_per_step": 384, **changes})
    return trl_plan(pool, server, engine, counted(pool.gpus, zero=2), nodes, GPUS_PER_NODE, pipe)


def served_on_one_node(**changes: Any) -> Plan:
    """Return GRPO on one node: two GPUs train, two serve."""
    pool, server = Mesh("train", 0, 1, 0, 2), Mesh("server", 0, 1, 2, 2)
    engine = EngineLayout(replicas=1, tp=2, max_sequences=512, memory_fraction=0.9, batched_tokens=8192)
    pipe = document(**{"workload.prompts_per_step": 64, **changes})
    return trl_plan(pool, server, engine, counted(2, zero=2), 1, GPUS_PER_NODE, pipe)


def adapters(**changes: Any) -> Plan:
    """Return GRPO of adapters on one node, one update a step."""
    settings = {"training.lora_rank": 32, "workload.prompts_per_step": 64, "workload.minibatches_per_step": 1}
    return colocated(1, layout={"zero": 2}, **{**settings, **changes})
