"""Layouts change where work is done, never what is learned: losses, gradients, weights that are moved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import HERE, curve, launch, lines, run_all
from native_model import make
from native_plans import apart, bind, colocated

from rpegc.target import EngineLayout, ShardedLayout

pytestmark = pytest.mark.native

TOLERANCE = 2e-3
S = ShardedLayout
TWO = {
    "ddp": S(dp=2, micro_batch=4),
    "zero1": S(dp=2, zero=1, micro_batch=4),
    "fsdp": S(dp=2, zero=2, shard_size=2, micro_batch=4),
    "fsdp-reshard": S(dp=2, zero=3, shard_size=2, token_budget=64, recompute="full"),
    "fsdp-offload": S(dp=2, zero=3, shard_size=2, micro_batch=4, offload_parameters=True, offload_optimizer=True),
    "tensor": S(tp=2, micro_batch=8),
    "sequence": S(tp=2, sequence_parallel=True, micro_batch=8),
    "ulysses": S(ulysses=2, zero=3, shard_size=2, micro_batch=4, recompute="selective"),
    "pipeline": S(pp=2, micro_batch=4),
    "interleaved": S(pp=2, vpp=2, micro_batch=4),
}
FOUR = {
    "fsdp x tensor": S(dp=2, tp=2, zero=3, shard_size=2, micro_batch=4, sequence_parallel=True),
    "hybrid": S(dp=4, zero=2, shard_size=2, micro_batch=2),
    "pipeline x zero1": S(pp=2, dp=2, zero=1, micro_batch=2),
    "ulysses x fsdp": S(ulysses=2, dp=2, zero=3, shard_size=4, micro_batch=2),
    "pipeline x tensor": S(pp=2, tp=2, micro_batch=4),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    make(folder)
    return folder


def assert_equal(runs: Path, names, plain: str = "plain") -> None:
    for name in names:
        for key in ("loss", "gradient_norm", "reward_mean"):
            pairs = zip(curve(runs / plain, key), curve(runs / name, key), strict=True)
            worst = max(abs(one - other) for one, other in pairs)
            assert worst < TOLERANCE, f"{name}: {key} differs by {worst}"


def test_gradients_of_every_layout_are_those_of_plain_data_parallelism(folder):
    text = launch(2, str(HERE / "native_gradients.py"), str(folder / "model"))
    report = json.loads(next(line for line in text.splitlines() if line.startswith("REPORT ")).removeprefix("REPORT "))
    assert report["scale"] > 100
    for name in report["ranks"][0]:
        held = [rank[name] for rank in report["ranks"]]
        for part in held:
            assert part["loss"] < 1e-3, name
            assert part["score"] < 2e-3, name
            assert part["gradient"] < 1e-3, name
        piped = name in ("1f1b", "interleaved")
        assert (held[0]["names"] + held[1]["names"] == report["names"]) == piped, name


def test_two_processes_learn_what_one_does(folder, tmp_path):
    steps = 5
    run_all(1, {"plain": bind(folder, colocated(1), steps=steps)}, tmp_path)
    chosen = ("zero1", "fsdp-reshard", "sequence", "ulysses", "pipeline")
    plans = {name: bind(folder, colocated(2), TWO[name], steps=steps) for name in chosen}
    plans["tensor engine"] = bind(folder, colocated(2), TWO["ddp"], EngineLayout(tp=2, max_sequences=5), steps=steps)
    plans["apart"] = bind(folder, apart(1, 1), steps=steps)
    plans["streamed"] = bind(folder, apart(1, 1), chunks=4, steps=steps)
    run_all(2, plans, tmp_path)
    assert len(set(curve(tmp_path / "plain"))) > 3  # there is something to learn, and it is learned
    assert_equal(tmp_path, plans)


@pytest.mark.long
def test_every_layout_of_two_and_four_gives_the_losses_of_one_over_20_steps(folder, tmp_path):
    run_all(1, {"plain": bind(folder, colocated(1), steps=20)}, tmp_path)
    run_all(2, {name: bind(folder, colocated(2), layout, steps=20) for name, layout in TWO.items()}, tmp_path)
    engine = EngineLayout(replicas=2, tp=2, max_sequences=8)
    run_all(4, {name: bind(folder, colocated(4), layout, engine, steps=20) for name, layout in FOUR.items()}, tmp_path)
    assert_equal(tmp_path, [*TWO, *FOUR])


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("qwen2", S(tp=2, micro_batch=4)),
        ("qwen3", S(tp=2, sequence_parallel=True, micro_batch=4)),
        ("qwen3_moe", S(dp=2, zero=3, shard_size=2, micro_batch=4)),
    ],
)
def test_every_family_learns_the_same_split_and_whole(kind, layout, tmp_path):
    make(tmp_path, kind)
    run_all(1, {"plain": bind(tmp_path, colocated(1), steps=5)}, tmp_path)
    run_all(2, {"split": bind(tmp_path, colocated(2), layout, steps=5)}, tmp_path)
    assert_equal(tmp_path, ["split"])


@pytest.mark.long
def test_ppo_with_a_critic_learns_the_same_split_and_whole(folder, tmp_path):
    roles = "  critic: {like: actor}\n  reference: {like: actor}"
    ppo = {"algorithm": "ppo", "models": roles, "kl": 0.05, "kl_where": "reward", "minibatches": 2, "steps": 6}
    run_all(1, {"plain": bind(folder, colocated(1), **ppo)}, tmp_path)
    split = S(dp=2, zero=3, shard_size=2, micro_batch=4)
    run_all(2, {"split": bind(folder, colocated(2), split, **ppo)}, tmp_path)
    assert_equal(tmp_path, ["split"])
    assert curve(tmp_path / "plain", "critic_loss") == pytest.approx(curve(tmp_path / "split", "critic_loss"), abs=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(("advantage", "aggregation"), [("rloo", "sequence-mean"), ("grpo", "constant-length")])
def test_streamed_equals_unstreamed_for_every_denominator(folder, tmp_path, advantage, aggregation):
    options = {"overrides": f", advantage: {advantage}, aggregation: {aggregation}", "steps": 5}
    plans = {f"chunks {n}": bind(folder, apart(1, 1), chunks=n, **options) for n in (1, 2, 4)}
    run_all(2, plans, tmp_path)
    assert_equal(tmp_path, list(plans), "chunks 1")


def test_a_run_says_where_its_seconds_went(folder, tmp_path):
    run_all(1, {"plain": bind(folder, colocated(1), steps=2)}, tmp_path)
    stages = {"rollout", "verify", "advantages", "update_actor", "sync_actor_rollout"}
    for record in lines(tmp_path / "plain"):
        assert set(record["stage_seconds"]) == stages
        assert all(seconds >= 0 for seconds in record["stage_seconds"].values())
        assert sum(record["stage_seconds"].values()) < 2 * record["step_seconds"]
    events = json.loads((tmp_path / "plain" / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"} == stages
