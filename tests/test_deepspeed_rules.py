"""What TRL, DeepSpeed and vLLM refuse about a layout, each with its values."""

from __future__ import annotations

from typing import Any

import pytest

from backends.deepspeed.capabilities import MENUS, capabilities
from backends.deepspeed.rules import RULES
from rpegc.errors import InputError
from rpegc.target import EngineLayout, Layout, MeshClass, ShardedLayout

WORKLOAD = {"sequences_per_step": 1024, "sequences_per_update": 512, "samples_per_prompt": 8, "node_gpus": 4}
MODEL = {"heads": 32, "kv_heads": 8, "vocabulary": 151936, "max_positions": 40960, "max_sequence_tokens": 9000}
CONTEXT: dict[str, Any] = {**WORKLOAD, **MODEL, "hbm_bytes": 96e9, "parameter_bytes": 16e9, "apart": 0}
MESH = MeshClass(2, 4)
TRAIN = ShardedLayout(dp=8, zero=2, shard_size=8, micro_batch=4)
ENGINE = EngineLayout(replicas=8, max_sequences=128, batched_tokens=4096)
SERVER = EngineLayout(replicas=1, tp=4, max_sequences=256, batched_tokens=8192)


def refused_by(op: str, layout: Layout, mesh: MeshClass, **context: Any) -> dict[str, str]:
    found = {}
    for rule in RULES[op]:
        try:
            rule.check(layout, mesh, CONTEXT | context, "stage x")
        except InputError as error:
            found[rule.name] = error.message
    return found


def test_sound_layouts_pass_every_rule() -> None:
    assert refused_by("train", TRAIN, MESH) == {}
    assert refused_by("forward", TRAIN, MESH) == {}
    assert refused_by("generate", ENGINE, MESH) == {}
    assert refused_by("generate", SERVER, MeshClass(1, 4), apart=1) == {}


def changed(layout: Layout, **changes: Any) -> Layout:
    from dataclasses import replace

    return replace(layout, **changes)


CASES = [
    ("train", "trainer-has-no-model-parallelism", changed(TRAIN, dp=4, ulysses=2), MESH, {}, "ulysses 2"),
    ("train", "zero-shards-over-all-ranks", changed(TRAIN, shard_size=4), MESH, {}, "must be 0 or 8, not 4"),
    ("train", "sequences-are-counted", changed(TRAIN, micro_batch=0, token_budget=8192), MESH, {}, "token_budget 8192"),
    ("train", "parameters-offload-with-zero-3", changed(TRAIN, offload_parameters=True), MESH, {}, "zero is 2"),
    ("train", "optimizer-offload-with-zero", changed(TRAIN, zero=0, offload_optimizer=True), MESH, {}, "zero is 0"),
    ("train", "micro-batches-tile-the-update", changed(TRAIN, micro_batch=3), MESH, {}, "512 sequences"),
    ("train", "pool-takes-whole-nodes", changed(TRAIN, dp=4, shard_size=4), MeshClass(2, 2), {}, "all 4 GPUs"),
    ("train", "recompute-is-all-or-nothing", changed(TRAIN, recompute="selective"), MESH, {}, "none or full"),
    ("generate", "replicas-tile-pool", changed(ENGINE, replicas=4), MESH, {}, "replicas 4"),
    ("generate", "tp-inside-a-node", changed(ENGINE, replicas=1, tp=8), MESH, {}, "tp 8"),
    ("generate", "colocated-engine-runs-its-share", changed(ENGINE, max_sequences=64), MESH, {}, "not 64"),
    ("generate", "colocated-engine-runs-its-share", changed(ENGINE, max_sequences=256), MESH, {}, "not 256"),
    ("generate", "colocated-engine-batches-4096-tokens", changed(ENGINE, batched_tokens=8192), MESH, {}, "not 8192"),
    ("generate", "server-is-one-replica", changed(SERVER, replicas=2), MESH, {"apart": 1}, "2 nodes"),
    ("generate", "server-never-sleeps", changed(SERVER, offload=True), MeshClass(1, 4), {"apart": 1}, "wakes"),
    (
        "generate",
        "server-gets-64-prompts-at-once",
        changed(SERVER, max_sequences=1024),
        MeshClass(1, 4),
        {"apart": 1},
        "1024",
    ),
    ("generate", "sequence-fits-the-model", ENGINE, MESH, {"max_positions": 8192}, "9000 tokens"),
]


@pytest.mark.parametrize(("op", "name", "layout", "mesh", "context", "words"), CASES, ids=[case[1] for case in CASES])
def test_rule_refuses_and_says_the_values(
    op: str, name: str, layout: Layout, mesh: MeshClass, context: dict[str, Any], words: str
) -> None:
    found = refused_by(op, layout, mesh, **context)
    assert name in found
    assert words in found[name]
    assert "[" + name + "; " in found[name]  # and the file that enforces it


def test_every_rule_names_a_file_and_is_tested() -> None:
    shared = {"tp-splits-heads", "tp-splits-key-value-heads", "tp-splits-vocabulary", "weights-fit-the-engine"}
    shared |= {"memory-fraction-is-a-share", "batched-tokens-hold-the-batch"}  # tests/test_verl_rules.py
    tested = {case[1] for case in CASES}
    for rules in RULES.values():
        for rule in rules:
            assert rule.source.endswith(".py")
            assert rule.name in tested | shared


@pytest.mark.parametrize("share", [1, 3, 7, 100, 768, 2047, 4096])
def test_the_menu_has_a_value_for_every_share(share: int) -> None:
    menu = MENUS["generate", "max_sequences"]
    assert any(share <= value < 2 * share or value == share for value in menu)


def test_menus_hold_only_accepted_values() -> None:
    known = capabilities()
    for key, values in known.menus.items():
        assert set(values) <= set(known.field_values.get(key, values))


def test_only_the_pinned_version_is_known() -> None:
    with pytest.raises(InputError, match=r"writes for 0\.19\.8"):
        capabilities("0.18.0")
