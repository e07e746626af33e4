"""Plans made by hand for the verl backend's tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.plan import Devices, Objective, Plan, PlannedRewrite, PlannedStage, SearchRecord, Staleness, Target
from rpegc.target import EngineLayout, Layout, Mesh, ShardedLayout

GPUS_PER_NODE = 4


def pipeline(**changes: Any) -> dict[str, Any]:
    """Return a resolved GRPO pipeline; dotted keys change single entries."""
    document: dict[str, Any] = {
        "name": "qwen3-8b-grpo",
        "algorithm": "grpo",
        "models": {
            "actor": {"config": "Qwen/Qwen3-8B", "weights": "/models/Qwen3-8B", "tokenizer": None, "like": None},
            "reference": {
                "config": "Qwen/Qwen3-8B",
                "weights": "/models/Qwen3-8B",
                "tokenizer": None,
                "like": "actor",
            },
        },
        "data": {
            "train": "/data/math.parquet",
            "val": "/data/aime.parquet",
            "prompt_key": "prompt",
            "answer_key": "answer",
        },
        "workload": {
            "prompts_per_step": 512,
            "samples_per_prompt": 16,
            "prompt_tokens": {"mean": 300, "max": 1024},
            "response_tokens": {"mean": 3000, "p99": 11000, "max": 16384},
            "minibatches_per_step": 4,
        },
        "training": {
            "precision": "bf16",
            "optimizer": "adamw",
            "learning_rate": 1.0e-6,
            "epochs_per_batch": 1,
            "clip": [0.2, 0.28],
            "kl": {"coefficient": 0.001, "where": "loss", "estimator": "k3"},
            "temperature": 1.0,
            "lora_rank": 0,
            "total_steps": 500,
            "save_every": 20,
            "test_every": 20,
        },
        "reward": {"function": "rewards/math.py:score", "seconds_per_sample": 0.02, "workers_per_node": 64},
        "cluster": {"hardware": "gh200-alps", "nodes": 4, "site": "alps"},
        "allow": {"max_staleness": 1, "partial_rollout": False, "model_changes": [], "minimum_gain": 0.05},
        "objective": "step_time",
        "target": "verl",
        "target_overrides": {},
        "stages": {},
    }
    for path, value in changes.items():
        parts = path.replace("__", ".").split(".")
        entry = document
        for part in parts[:-1]:
            entry = entry[part]
        entry[parts[-1]] = value
    return document


def sharded(gpus: int, **changes: Any) -> ShardedLayout:
    """Return an FSDP2 layout over some GPUs."""
    ulysses = changes.pop("ulysses", 1)
    base = ShardedLayout(
        dp=gpus // ulysses, ulysses=ulysses, zero=3, shard_size=gpus, token_budget=32768, recompute="none"
    )
    return replace(base, **changes)


def megatron(gpus: int, **changes: Any) -> ShardedLayout:
    """Return a Megatron layout over some GPUs."""
    base = ShardedLayout(zero=1, tp=2, pp=2, sequence_parallel=True, token_budget=20480, recompute="none")
    layout = replace(base, **changes)
    ranks = gpus // (layout.tp * layout.pp * layout.cp)
    return replace(layout, dp=ranks, shard_size=ranks * layout.cp)


def planned(name: str, op: str, model: str, mesh: str, layout: Layout | None) -> PlannedStage:
    """Return a bound stage without a price."""
    return PlannedStage(name, op, model, mesh, layout, 0.0, 10.0, (0.9, 1.1), {})


def plan_of(
    document: dict[str, Any],
    stages: list[PlannedStage],
    meshes: tuple[Mesh, ...],
    nodes: int,
    mode: str = "sync",
    adapter_off: tuple[str, ...] = (),
    rewrites: tuple[str, ...] = (),
    period_s: float = 100.0,
    engine: str = "fsdp",
    distance: int = 1,
) -> Plan:
    """Return a plan around bound stages."""
    nodes_of_graph = []
    for stage in stages:
        attributes: tuple[tuple[str, str], ...] = (("adapter", "off"),) if stage.name in adapter_off else ()
        nodes_of_graph.append(Stage(stage.name, Op(stage.op), stage.model, attributes))
    edges = (Edge("train_actor", "generate", "weights(actor)", distance),)
    return Plan(
        name=document["name"],
        target=Target("verl", "0.9.1"),
        rpegc_version="0.1.0",
        seed=7,
        pipeline=document,
        graph=Graph(document["name"], tuple(nodes_of_graph), edges, mode=mode, engine=engine),
        knobs={},
        transitions=(),
        period_s=period_s,
        period_interval_s=(0.8 * period_s, 1.3 * period_s),
        lower_bound_s=period_s,
        gap=0.0,
        objective=Objective("step_time", period_s),
        tokens_per_s_per_gpu=1000.0,
        mfu=0.4,
        gpu_hours_per_step=0.4,
        usd_per_step=None,
        devices=Devices("gh200-alps", nodes, nodes * GPUS_PER_NODE, GPUS_PER_NODE, 0),
        meshes=meshes,
        stages=tuple(stages),
        memory=(),
        rewrites=tuple(PlannedRewrite(name, "model", "", None) for name in rewrites),
        staleness=Staleness(0, 0.0, 0),
        search=SearchRecord("default", "optimal", 1, 1, 1, 0, False),
    )


def colocated_grpo(nodes: int = 4, **changes: Any) -> Plan:
    """Return GRPO with everything on one pool."""
    mesh = Mesh("all", 0, nodes, 0, GPUS_PER_NODE)
    actor = sharded(mesh.gpus, ulysses=2, recompute="full", offload_optimizer=True)
    stages = [
        planned(
            "generate", "generate", "actor", "all", EngineLayout(replicas=mesh.gpus, memory_fraction=0.8, offload=True)
        ),
        planned("old_logprobs", "forward", "actor", "all", replace(actor, recompute="none", token_budget=65536)),
        planned("reference_logprobs", "forward", "reference", "all", sharded(mesh.gpus, offload_parameters=True)),
        planned("verify", "function", "", "", None),
        planned("train_actor", "train", "actor", "all", actor),
    ]
    return plan_of(pipeline(**changes), stages, (mesh,), nodes)


def ppo(nodes: int = 4, own_pool: bool = True, **changes: Any) -> Plan:
    """Return PPO with a critic and a reward model, in a pool of its own or with the others."""
    train_nodes = nodes - 1 if own_pool else nodes
    mesh = Mesh("train", 0, train_nodes, 0, GPUS_PER_NODE)
    judge = Mesh("judge", train_nodes, 1, 0, GPUS_PER_NODE) if own_pool else mesh
    document = pipeline(
        **{
            "workload.prompts_per_step": 384,
            "algorithm": "ppo",
            "training.kl": {"coefficient": 0.01, "where": "reward", "estimator": "k1"},
        }
    )
    document["reward"] = None
    document["models"]["critic"] = {"config": "Qwen/Qwen3-8B", "weights": "/models/critic", "tokenizer": None}
    document["models"]["reward"] = {"config": "Qwen/Qwen3-8B", "weights": "/models/judge", "tokenizer": None}
    for path, value in changes.items():
        document[path] = value
    critic = sharded(mesh.gpus, offload_parameters=True, offload_optimizer=True, recompute="full")
    actor = sharded(mesh.gpus, recompute="full")
    stages = [
        planned("generate", "generate", "actor", mesh.name, EngineLayout(replicas=mesh.gpus // 2, tp=2, offload=True)),
        planned("score", "forward", "reward", judge.name, sharded(judge.gpus, zero=3, shard_size=2)),
        planned("old_logprobs", "forward", "actor", mesh.name, replace(actor, recompute="none")),
        planned("reference_logprobs", "forward", "reference", mesh.name, sharded(mesh.gpus, offload_parameters=True)),
        planned("values", "forward", "critic", mesh.name, replace(critic, recompute="none")),
        planned("train_critic", "train", "critic", mesh.name, critic),
        planned("train_actor", "train", "actor", mesh.name, actor),
    ]
    meshes = (mesh, judge) if own_pool else (mesh,)
    return plan_of(document, stages, meshes, nodes)


def one_step_off(**changes: Any) -> Plan:
    """Return GRPO whose rollout has its own two of four nodes."""
    train, rollout = Mesh("train", 0, 2, 0, GPUS_PER_NODE), Mesh("rollout", 2, 2, 0, GPUS_PER_NODE)
    actor = sharded(train.gpus, shard_size=4, zero=2)
    stages = [
        planned("generate", "generate", "actor", "rollout", EngineLayout(replicas=8, memory_fraction=0.9)),
        planned("old_logprobs", "forward", "actor", "train", actor),
        planned("reference_logprobs", "forward", "reference", "train", sharded(train.gpus, offload_parameters=True)),
        planned("train_actor", "train", "actor", "train", actor),
    ]
    return plan_of(pipeline(**changes), stages, (train, rollout), 4, mode="one-step-off", distance=2)


def lora(**changes: Any) -> Plan:
    """Return GRPO of adapters on one node; the reference is the actor without its adapter."""
    mesh = Mesh("all", 0, 1, 0, GPUS_PER_NODE)
    actor = sharded(mesh.gpus, recompute="full")
    stages = [
        planned("generate", "generate", "actor", "all", EngineLayout(replicas=4, offload=True)),
        planned("old_logprobs", "forward", "actor", "all", replace(actor, recompute="none")),
        planned("reference_logprobs", "forward", "actor", "all", replace(actor, recompute="none")),
        planned("train_actor", "train", "actor", "all", actor),
    ]
    document = pipeline(**{"training.lora_rank": 32, "workload.prompts_per_step": 64, **changes})
    return plan_of(document, stages, (mesh,), 1, adapter_off=("reference_logprobs",))


def megatron_grpo(nodes: int = 4, mode: str = "sync", **changes: Any) -> Plan:
    """Return GRPO of a mixture of experts on Megatron: every kind of parallelism, first and last stage shorter."""
    mesh = Mesh("all", 0, nodes, 0, GPUS_PER_NODE)
    document = pipeline(**changes)
    document["architectures"] = {"actor": {"family": "qwen3_moe", "layers": 94, "heads": 64, "experts": 128}}
    degrees: dict[str, Any] = {"tp": 2, "pp": 4, "cp": 2, "ep": 4}
    actor = megatron(mesh.gpus, **degrees, recompute="full", offload_parameters=True, offload_optimizer=True)
    frozen = megatron(mesh.gpus, **degrees, token_budget=40960)
    stages = [
        planned("generate", "generate", "actor", "all", EngineLayout(replicas=mesh.gpus // 4, tp=4, offload=True)),
        planned("old_logprobs", "forward", "actor", "all", replace(actor, recompute="none", token_budget=40960)),
        planned("reference_logprobs", "forward", "reference", "all", frozen),
        planned("train_actor", "train", "actor", "all", actor),
    ]
    return plan_of(document, stages, (mesh,), nodes, engine="megatron", mode=mode)


def megatron_ppo(**changes: Any) -> Plan:
    """Return PPO on Megatron: actor, critic and reference share their degrees, the reward model is served apart."""
    plan = ppo(**changes)
    gpus = plan.mesh("train").gpus
    degrees: dict[str, Any] = {"tp": 2, "pp": 3, "vpp": 2}
    layouts = {
        "old_logprobs": megatron(gpus, **degrees),
        "reference_logprobs": megatron(gpus, **degrees, offload_parameters=True),
        "values": megatron(gpus, **degrees, token_budget=40960),
        "train_critic": megatron(gpus, **degrees, token_budget=40960),
        "train_actor": megatron(gpus, **degrees, recompute="selective"),
    }
    stages = tuple(replace(stage, layout=layouts.get(stage.name, stage.layout)) for stage in plan.stages)
    return replace(plan, stages=stages, graph=replace(plan.graph, engine="megatron"))


def separate_async(staleness: int = 2, engine: str = "fsdp", **changes: Any) -> Plan:
    """Return GRPO two steps behind its samples: V1's separate_async trainer, log-probs of the engine, two pools."""
    train, rollout = Mesh("train", 0, 2, 0, GPUS_PER_NODE), Mesh("rollout", 2, 2, 0, GPUS_PER_NODE)
    actor, frozen = sharded(train.gpus), sharded(train.gpus, offload_parameters=True)
    if engine == "megatron":
        actor = frozen = megatron(train.gpus)
    stages = [
        planned("generate", "generate", "actor", "rollout", EngineLayout(replicas=8, memory_fraction=0.9)),
        planned("reference_logprobs", "forward", "reference", "train", frozen),
        planned("train_actor", "train", "actor", "train", actor),
    ]
    changed = {"allow.max_staleness": staleness, "allow.model_changes": list(ASYNCHRONOUS)} | changes
    return plan_of(
        pipeline(**changed),
        stages,
        (train, rollout),
        4,
        mode="separate-async",
        engine=engine,
        distance=1 + staleness,
        rewrites=ASYNCHRONOUS,
    )


ASYNCHRONOUS = ("minibatches-by-completion", "reuse-rollout-logprobs")


def colocate_async(**changes: Any) -> Plan:
    """Return GRPO whose unfinished samples carry over to the next step: V1's colocate_async trainer."""
    plan = colocated_grpo(**{"allow.partial_rollout": True} | changes)
    graph = replace(plan.graph, mode="colocate-async")
    graph = graph.replace_stage(graph.stage("generate").with_attributes(carries=1))
    return replace(plan, graph=graph, rewrites=(PlannedRewrite("partial-rollout", "stale", "generate", None),))
