"""A PPO pipeline, a target and a context for the tests of passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rpegc.ir.graph import Graph
from rpegc.ir.text import parse_graph, print_graph
from rpegc.ir.verify import verify
from rpegc.rewrite import Allowance, Context, ModelFacts, Pass, WorkloadFacts
from rpegc.target import Capabilities, PlacementPattern

PPO = """rpeg ppo
stage rollout = generate of actor
stage verify = function (cpu_seconds_per_sample = 0.02)
stage old_logprobs = forward of actor (head = "logits")
stage reference = forward of reference (head = "logits")
stage values = forward of critic (head = "scalar")
stage advantages = function
stage update_critic = train of critic
stage update_actor = train of actor
edge rollout -> verify: sequences
edge rollout -> old_logprobs: sequences
edge update_actor -> old_logprobs: weights distance 1
edge rollout -> reference: sequences
edge rollout -> values: sequences
edge update_critic -> values: weights distance 1
edge verify -> advantages: rewards
edge values -> advantages: values
edge advantages -> update_critic: returns
edge update_critic -> update_critic: weights distance 1
edge rollout -> update_actor: sequences
edge rollout -> update_actor: behaviour_logprobs
edge old_logprobs -> update_actor: old_logprobs
edge reference -> update_actor: reference_logprobs
edge advantages -> update_actor: advantages
edge update_actor -> update_actor: weights distance 1
edge update_actor -> rollout: weights distance 1
"""

IN_REWARD = """edge old_logprobs -> advantages: old_logprobs
edge reference -> advantages: reference_logprobs
"""

STRUCTURES = frozenset(
    {
        "drop-old-logprobs",
        "reuse-rollout-logprobs",
        "share-base-reference",
        "share-actor-critic",
        "merge-critic-reward",
        "bounded-asynchrony",
        "minibatches-by-completion",
        "partial-rollout",
        "split-tail",
        "stream-rollout",
        "fuse-assessment",
        "fuse-training",
        "quantize-rollout",
        "quantize-collectives",
    }
)
LEARNED_REWARD = """stage reward = forward of reward (head = "scalar")
stage update_reward = train of reward (head = "scalar")
edge rollout -> reward: sequences
edge update_reward -> reward: weights distance 1
edge reward -> advantages: model_rewards
edge rollout -> update_reward: sequences
edge verify -> update_reward: rewards
edge update_reward -> update_reward: weights distance 1
"""
"""A reward model that learns beside the critic."""

COLOCATED = PlacementPattern("colocated", "sync", (0, 0), {"*": (1,)})
SPLIT = PlacementPattern(
    "split", "split", (0, 0, 0), {"op:generate": (1,), "model:critic": (1, 2), "update_actor": (2,)}, (1, 3)
)
ONE_STEP_OFF = PlacementPattern(
    "one-step-off",
    "one_step_off",
    (0, 0, 0),
    {"op:generate": (2,), "model:critic": (), "*": (1,)},
    weight_distance=(2, 2),
    requires=("reuse-rollout-logprobs",),
    forbids=("share-base-reference",),
)


def ppo(**changes: str) -> Graph:
    """The example, with old text replaced by new: ppo(old="...", new="...") or ppo(more="...")."""
    text = PPO.replace(changes.get("old", "\0"), changes.get("new", "")) + changes.get("more", "")
    graph = parse_graph(text)
    verify(graph)
    return graph


def facts(role: str, like: str = "", lora_rank: int = 0, experts: int = 0) -> ModelFacts:
    return ModelFacts(role, "example", 28, 3584, 28, 4, 151936, experts, 32768, like, lora_rank)


MODELS = {
    "actor": facts("actor"),
    "reference": facts("reference", like="actor"),
    "critic": facts("critic"),
    "reward": facts("reward"),
}

WORKLOAD = WorkloadFacts(512, 16, 1, 1, 1024, 8192, 300.0, 3000.0, 0.001, "loss")

SPACE = {
    ("generate", "tp"): (1, 2, 4, 8),
    ("forward", "ulysses"): (1, 2, 8),
    ("forward", "ep"): (1, 2, 4),
    ("train", "pp"): (1, 2, 32),
    ("train", "recompute"): ("none", "selective", "full"),
    ("train", "ep"): (2, 4),
}


def context(**changes: Any) -> Context:
    """A context that allows nothing beyond `exact`; keyword arguments replace fields of it or of what it holds."""
    target: dict[str, Any] = {"placements": (COLOCATED,), "field_values": {}, "structures": STRUCTURES}
    target |= {name: changes.pop(name) for name in tuple(changes) if name in target}
    allow = {
        name: changes.pop(name) for name in ("max_staleness", "model_changes", "partial_rollout") if name in changes
    }
    models = changes.pop("models", MODELS)
    space = changes.pop("space", SPACE)
    capabilities = Capabilities("example", "1", "fsdp", rules={}, ties=(), **target)
    return Context(models, replace(WORKLOAD, **changes), Allowance(**allow), space, capabilities)


def before_and_after(rewrite: Pass, graph: Graph, given: Context) -> str:
    """Run one pass, verify what it makes, and return the text before and after it."""
    made = rewrite.alternatives(graph, given)
    for alternative in made:
        verify(alternative)
    texts = [f"# before {rewrite.name}\n{print_graph(graph)}"]
    texts += [f"# after: {number} of {len(made)}\n{print_graph(g)}" for number, g in enumerate(made, start=1)]
    return "\n".join(texts)
