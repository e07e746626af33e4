"""Lengths of a run: read from its samples, drifting, correlated within a group; and what they do to a rollout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rpegc.cost.functions import price_function, seconds_after_generation
from rpegc.cost.rollout import length_grid, roll_out
from rpegc.cost.work import Speculation
from rpegc.errors import InputError, SourcePosition
from rpegc.frontend.load import load_pipeline
from rpegc.frontend.rollouts import BYTES_PER_TOKEN, read_rollouts
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths, LengthsError, group_correlation
from rpegc.target import EngineLayout, MeshClass, columns_of
from tests.test_generation_price import WORK, price

PIPELINE = """\
name: small
algorithm: grpo
models:
  actor: {config: Qwen/Qwen3-8B}
workload:
  prompts_per_step: 64
  samples_per_prompt: 8
  prompt_tokens: {mean: 100, max: 512}
  response_tokens: {histogram: samples.jsonl, max: 4096}
reward: {seconds_per_sample: 0.01}
cluster: {hardware: gh200-alps, nodes: 2}
"""
HERE = SourcePosition("p.yaml", 9, 32, "")


def samples(folder: Path, *lines: object) -> Path:
    path = folder / "samples.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_a_pipeline_reads_the_samples_of_a_run(tmp_path: Path) -> None:
    samples(tmp_path, {"response_length": 100}, {"response_length": 300}, {"response_length": 9000})
    (tmp_path / "p.yaml").write_text(PIPELINE)
    lengths = load_pipeline(tmp_path / "p.yaml").response_lengths()
    assert lengths.mean == pytest.approx((100 + 300 + 4096) / 3)  # what is cut sits at the maximum
    assert lengths.p99 == 4096


def test_counts_go_before_identifiers_and_these_before_text(tmp_path: Path) -> None:
    text = "word " * 72
    path = samples(
        tmp_path,
        {"output_tokens": 7, "response_ids": [1, 2], "output": text},
        {"response_ids": [1, 2], "output": text},
        {"input": "1 + 1 = ?", "output": text, "gts": "2", "score": 1.0, "step": 3},  # a dump of verl
        "",
    )
    assert read_rollouts(path, "samples.jsonl", "response_tokens", HERE) == ((2, 1), (7, 1), (100, 1))
    assert len(text) / BYTES_PER_TOKEN == pytest.approx(100)
    only_text = samples(tmp_path, {"input": "x" * 36, "output": ""})
    assert read_rollouts(only_text, "samples.jsonl", "prompt_tokens", HERE) == ((10, 1),)


@pytest.mark.parametrize(
    ("line", "words", "hint"),
    [
        ("{'response_length': 1}", "one JSON object", ""),
        ("[1, 2]", "one JSON object", ""),
        ('{"response_lenght": 12}', "must have one of the keys response_length", "did you mean `response_length`?"),
        ('{"response_length": -4}', "must lie between 0 and", ""),
        ('{"response_length": true}', "must lie between 0 and", ""),
    ],
)
def test_a_wrong_line_is_refused_at_its_number(tmp_path: Path, line: str, words: str, hint: str) -> None:
    path = samples(tmp_path, {"response_length": 1}, line)
    with pytest.raises(InputError) as caught:
        read_rollouts(path, "samples.jsonl", "response_tokens", HERE)
    assert words in caught.value.message
    assert hint in (caught.value.hint or "")
    assert str(caught.value.position) == "samples.jsonl:2:1"


def test_a_file_without_samples_is_refused_where_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no samples") as caught:
        read_rollouts(samples(tmp_path, ""), "samples.jsonl", "response_tokens", HERE)
    assert caught.value.position == HERE


@pytest.mark.parametrize(
    "lengths", [Lengths.from_mean(1000, 4096), Lengths.fixed(700), Lengths.from_histogram([(100, 3), (3000, 1)], 4096)]
)
def test_a_drift_of_the_mean_fills_the_maximum(lengths: Lengths) -> None:
    longer = lengths.drifted(2.0)
    assert longer.max == lengths.max
    assert lengths.mean <= longer.mean <= 2.0 * lengths.mean + 1.0
    assert longer.survival(lengths.max - 1) >= lengths.survival(lengths.max - 1)
    assert longer.drifted(0.5).mean == pytest.approx(lengths.mean, rel=0.35)
    with pytest.raises(LengthsError, match="must be positive"):
        lengths.drifted(0.0)


def test_a_drift_of_the_mean_costs_less_than_its_factor_near_the_maximum() -> None:
    now = WORK.response_tokens
    seconds = [
        price(EngineLayout(replicas=16), work=replace(WORK, response_tokens=now.drifted(factor))).seconds[0]
        for factor in (1.0, 1.5, 3.0)
    ]
    assert seconds[0] < seconds[1] < seconds[2] < 2.5 * seconds[0]


def test_the_correlation_of_groups_is_found_again() -> None:
    lengths = Lengths.from_mean(500, 100_000, 0.8)
    for wanted in (0.0, 0.5, 0.9):
        drawn = lengths.sample(np.random.default_rng(1), 400, 8, wanted)
        assert group_correlation(drawn.tolist()) == pytest.approx(wanted, abs=0.06)
    with pytest.raises(LengthsError, match="two prompts"):
        group_correlation([[1], [2, 3]])


def test_correlated_groups_end_an_engine_earlier() -> None:
    lengths = Lengths.from_mean(2000, 16384)
    grid, one = length_grid(lengths, 512), np.ones(1)

    def slowest(correlation: float) -> float:
        rollout = roll_out(lengths, grid, 300.0, 64 * one, 64 * one, 8 * one, one, 16, correlation)
        return float(np.sum(rollout.steps * rollout.busy_slowest))

    drawn = [
        lengths.sample(np.random.default_rng(seed), 32, 16, 0.5).max() for seed in range(400)
    ]  # the longest of all 512 responses is when the slowest engine ends
    assert slowest(0.5) == pytest.approx(float(np.mean(drawn)), rel=0.03)
    assert slowest(0.9) < slowest(0.5) < slowest(0.0)


def test_speculation_saves_about_what_a_published_pair_shows() -> None:
    """SkyRL, Qwen3.5-9B on 8 H100: 310.1 s and, with 3 drafted tokens of which 77.3 % hold, 152.4 s of generation."""
    work = replace(WORK, prompts=32, samples_per_prompt=8, response_tokens=Lengths.from_mean(5000, 8192))
    layout = EngineLayout(replicas=8, max_sequences=1024, memory_fraction=0.8)
    machine = load_machine("h100-dgx")
    plain = price(layout, work=work, nodes=1, machine=machine).seconds[0]
    drafted = replace(work, speculation=Speculation(3, 0.773, 1 / 32))
    faster = price(layout, work=drafted, nodes=1, machine=machine).seconds[0]
    assert plain / faster == pytest.approx(310.1 / 152.4, rel=0.15)


def test_drafts_do_not_pay_where_the_batch_already_fills_the_gpu() -> None:
    busy = replace(WORK, prompts=2048, prompt_tokens=Lengths.fixed(64), response_tokens=Lengths.fixed(256))
    layout = EngineLayout(replicas=16, max_sequences=2048, memory_fraction=0.9)
    poor = replace(busy, speculation=Speculation(3, 0.3, 0.05))
    assert price(layout, work=poor).seconds[0] > price(layout, work=busy).seconds[0]


def test_fp8_rollouts_read_fewer_bytes() -> None:
    slow, fast = (EngineLayout(replicas=16, precision=precision, max_sequences=32) for precision in ("bf16", "fp8"))
    table = price(slow, fast)
    weights = next(term.seconds for term in table.times if term.name == "weights_read")
    assert 0.5 < weights[1] / weights[0] < 0.65  # all but the vocabulary
    assert table.seconds[1] < table.seconds[0]


def test_a_cache_that_is_too_small_is_paid_in_prompts_read_again() -> None:
    def prefill(max_sequences: int) -> float:
        layout = EngineLayout(replicas=16, max_sequences=max_sequences, memory_fraction=0.3)
        table = price(layout, work=replace(WORK, prompts=1024))
        return float(next(term.seconds[0] for term in table.times if term.name == "prefill"))

    assert prefill(512) > 1.2 * prefill(16)  # 16 always fit: nothing is preempted


def test_a_verifier_that_starts_with_the_first_sample_outlasts_generation_less() -> None:
    machine, mesh = load_machine("gh200-alps"), MeshClass(4, 4)
    table = price(EngineLayout(replicas=16))
    work = replace(
        WORK, stage="verify", op=Op.FUNCTION, architecture=None, cpu_seconds_per_sample=2.0, workers_per_node=64
    )
    after = sum(float(term.seconds[0]) for term in price_function(work, mesh.nodes, machine))
    beside = seconds_after_generation(work, table.completion[0], mesh.nodes, machine)
    assert 0.0 < beside < after
    slow = replace(work, cpu_seconds_per_sample=100.0)
    least = work.sequences * 100.0 / (64 * mesh.nodes) - float(table.seconds[0])
    assert seconds_after_generation(slow, table.completion[0], mesh.nodes, machine) > least
    assert columns_of([EngineLayout()], mesh)["tp"][0] == 1
