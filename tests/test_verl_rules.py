"""Every rule of the verl backend refuses what it is for, says so with values, and leaves a sound layout alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.verl.rules import RULES
from rpegc.errors import InputError
from rpegc.target import EngineLayout, MeshClass, Rule, ShardedLayout, columns_of

CONTEXT: dict[str, Any] = {
    "heads": 32,
    "kv_heads": 8,
    "layers": 36,
    "experts": 0,
    "vocabulary": 151936,
    "hidden": 4096,
    "max_positions": 40960,
    "lora_rank": 0,
    "prompts_per_step": 512,
    "samples_per_prompt": 16,
    "sequences_per_step": 8192,
    "sequences_per_update": 2048,
    "prompts_per_update": 128,
    "max_prompt_tokens": 1024,
    "max_response_tokens": 16384,
    "max_sequence_tokens": 17408,
    "parameter_bytes": 16.4e9,
    "hbm_bytes": 1.0e11,
    "node_gpus": 4,
    "trained": 1,
}
MESH = MeshClass(4, 4)
TRAIN = ShardedLayout(dp=8, ulysses=2, zero=3, shard_size=16, token_budget=16384, recompute="full")
FORWARD = replace(TRAIN, recompute="none")
GENERATE = EngineLayout(replicas=8, tp=2)
SOUND: dict[str, Any] = {"train": TRAIN, "forward": FORWARD, "generate": GENERATE}

# op, rule, changed layout fields, changed context, another mesh, a piece of the message
REFUSED: list[tuple[str, str, dict[str, Any], dict[str, Any], MeshClass, str]] = [
    ("train", "fsdp-has-no-model-parallelism", {"dp": 4, "tp": 2}, {}, MESH, "tp 2"),
    ("forward", "fsdp-has-no-model-parallelism", {"dp": 16}, {}, MESH, "the 16 GPUs"),
    ("train", "ulysses-splits-heads", {}, {"heads": 33}, MESH, "divide 33 attention heads"),
    ("train", "ulysses-splits-heads", {"ulysses": 4, "dp": 4}, {"kv_heads": 6}, MESH, "6 key-value heads"),
    ("train", "ulysses-inside-a-node", {"ulysses": 8, "dp": 2}, {}, MESH, "ulysses 8 must divide the 4 GPUs"),
    ("train", "shard-group-tiles-mesh", {"shard_size": 3}, {}, MESH, "fsdp_size 3"),
    ("train", "fsdp2-always-shards", {"zero": 1}, {}, MESH, "not 1"),
    ("train", "token-budget-holds-a-sequence", {"token_budget": 8192}, {}, MESH, "8192 × ulysses 2"),
    ("forward", "token-budget-holds-a-sequence", {"token_budget": 0, "micro_batch": 4}, {}, MESH, "17408 tokens"),
    ("train", "pool-takes-whole-nodes", {}, {}, MeshClass(8, 2), "not 2"),
    ("generate", "pool-takes-whole-nodes", {}, {}, MeshClass(8, 2), "not 2"),
    ("train", "minibatch-splits-over-ranks", {}, {"sequences_per_update": 2052}, MESH, "2052 sequences"),
    ("train", "recompute-is-all-or-nothing", {"recompute": "selective"}, {}, MESH, "none or full"),
    ("forward", "batch-splits-over-ranks", {}, {"sequences_per_step": 8194}, MESH, "8194 sequences"),
    ("forward", "frozen-weights-are-offloaded", {}, {"trained": 0}, MESH, "must be true"),
    ("generate", "replicas-tile-pool", {"replicas": 4}, {}, MESH, "replicas 4"),
    ("generate", "rollout-has-no-pipeline", {"pp": 2, "replicas": 4}, {}, MESH, "not 2"),
    ("generate", "expert-parallel-takes-the-replica", {"ep": 2}, {}, MESH, "experts (0)"),
    ("generate", "expert-parallel-takes-the-replica", {"ep": 4}, {"experts": 128}, MESH, "ep 4 must be 1"),
    ("generate", "experts-split-over-ranks", {"ep": 2}, {"experts": 127}, MESH, "127 experts"),
    ("generate", "replica-is-whole-nodes", {"replicas": 1, "tp": 16}, {}, MeshClass(5, 3), "at most 3"),
    ("generate", "tp-tiles-a-node", {"tp": 3, "replicas": 5}, {"heads": 33, "kv_heads": 3}, MESH, "tp 3"),
    (
        "generate",
        "data-parallel-engine-takes-whole-nodes",
        {"engine_dp": 3, "replicas": 2},
        {},
        MESH,
        "with dp 3",
    ),
    ("generate", "tp-splits-heads", {"tp": 16, "replicas": 1}, {"heads": 24}, MESH, "24 attention heads"),
    ("generate", "tp-splits-key-value-heads", {"tp": 4, "replicas": 4}, {"kv_heads": 6}, MESH, "6 key-value heads"),
    ("generate", "tp-splits-vocabulary", {"tp": 12, "replicas": 1}, {"vocabulary": 151936}, MESH, "151936"),
    ("generate", "weights-fit-the-engine", {"memory_fraction": 0.05}, {}, MESH, "16400000000 bytes"),
    ("generate", "memory-fraction-is-a-share", {"memory_fraction": 1.7}, {}, MESH, "1.7"),
    ("generate", "sequence-fits-the-model", {}, {"max_positions": 8192}, MESH, "8192 positions"),
    ("generate", "batched-tokens-hold-the-batch", {"batched_tokens": 128}, {}, MESH, "128"),
    ("generate", "rollout-is-bf16", {"precision": "fp8"}, {}, MESH, "bf16"),
    ("generate", "lora-rank-is-served", {}, {"lora_rank": 1024}, MESH, "1024 must be at most 512"),
]


def rule_named(op: str, name: str) -> Rule:
    return next(rule for rule in RULES[op] if rule.name == name)


@pytest.mark.parametrize("op", sorted(RULES))
def test_sound_layout_passes_every_rule(op: str) -> None:
    for rule in RULES[op]:
        rule.check(SOUND[op], MESH, CONTEXT, f"stage {op}")


@pytest.mark.parametrize(("op", "name", "layout", "context", "mesh", "words"), REFUSED)
def test_rule_refuses_and_says_the_values(
    op: str, name: str, layout: dict[str, Any], context: dict[str, Any], mesh: MeshClass, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        rule_named(op, name).check(replace(SOUND[op], **layout), mesh, CONTEXT | context, "stage x")
    assert "stage x: " in str(caught.value)
    assert words in str(caught.value)
    assert f"[{name}; " in str(caught.value)


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rules in RULES.values() for rule in rules} == {case[1] for case in REFUSED}


@pytest.mark.parametrize("op", sorted(RULES))
def test_rules_filter_whole_tables(op: str) -> None:
    layouts = [SOUND[op]] * 5
    columns = columns_of(layouts, MESH)
    columns |= {name: np.full(5, value) for name, value in CONTEXT.items()}
    for rule in RULES[op]:
        allowed = rule.allows(columns)
        assert allowed.shape == (5,), rule.name
        assert allowed.dtype == np.bool_, rule.name
        assert allowed.all(), rule.name


def test_a_pool_on_part_of_one_node_is_fine() -> None:
    rule_named("generate", "pool-takes-whole-nodes").check(GENERATE, MeshClass(1, 2), CONTEXT, "stage x")


def test_more_ranks_than_key_value_heads_replicate_them() -> None:
    rule_named("generate", "tp-splits-key-value-heads").check(
        replace(GENERATE, tp=16, replicas=1), MESH, CONTEXT, "stage x"
    )
