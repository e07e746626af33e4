"""Prices of trainers that pad to the longest sample, of optimizers that step on the host, of ZeRO levels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rpegc.cost.training import price_training
from rpegc.frontend.load import pipeline_from_text
from rpegc.target import MeshClass, ShardedLayout, columns_of

PIPELINE = """
name: small
algorithm: grpo
models: {actor: {config: Qwen/Qwen3-8B}}
workload:
  prompts_per_step: 64
  samples_per_prompt: 8
  prompt_tokens: {mean: 100, max: 512}
  response_tokens: RESPONSES
reward: {seconds_per_sample: 0.01}
cluster: {hardware: gh200-alps, nodes: 2}
target: deepspeed
"""
MESH = MeshClass(2, 4)
LAYOUT = ShardedLayout(dp=8, zero=2, shard_size=8, micro_batch=4, recompute="full")


def priced(layout: ShardedLayout, responses: str = "{mean: 1000, p99: 4000, max: 8192}", engine: str = "trl"):  # type: ignore[no-untyped-def]
    from rpegc.compiler import Options, setting_of, structures
    from rpegc.cost.work import stage_works

    setting = setting_of(pipeline_from_text(PIPELINE.replace("RESPONSES", responses)), Options())
    work = stage_works(structures(setting)[0], setting.work)["update_actor"]
    work = replace(work, engine_class=f"deepspeed-{engine}")
    columns = columns_of([layout], MESH)
    return price_training(work, MESH, columns, setting.machine)


def term(table, name: str) -> float:  # type: ignore[no-untyped-def]
    return float(sum(t.seconds[0] for t in table.times if t.name == name))


def memory(table, *names: str) -> float:  # type: ignore[no-untyped-def]
    return float(sum(t.bytes[0] for t in table.memory if t.name in names))


def test_padding_costs_what_the_longest_sample_is_over_the_mean() -> None:
    """Every sample of the step is as long as the longest: 512 lognormal ones of mean 1000 reach several thousand."""
    padded, packed = term(priced(LAYOUT), "gemm"), term(priced(LAYOUT, engine="openrlhf"), "gemm")
    assert 3.0 < padded / packed < 8.0


def test_equal_lengths_are_not_padded() -> None:
    fixed = "{fixed: 1000}"
    text = PIPELINE.replace("{mean: 100, max: 512}", "{fixed: 100}")
    assert text != PIPELINE
    padded, packed = priced(LAYOUT, fixed), priced(LAYOUT, fixed, "openrlhf")
    assert term(padded, "gemm") == pytest.approx(term(packed, "gemm"), rel=0.25)  # prompts alone are padded


def test_an_optimizer_on_the_host_takes_no_gpu_memory_and_is_slower() -> None:
    here, there = priced(LAYOUT), priced(replace(LAYOUT, offload_optimizer=True))
    assert memory(here, "optimizer") > 1e9
    assert memory(there, "optimizer", "optimizer_onloaded") == 0
    assert memory(there, "offloaded_optimizer") > 1e9
    assert term(there, "offload_optimizer") > term(here, "offload_optimizer") == 0


def test_zero_2_shards_gradients_and_zero_1_does_not() -> None:
    names = ("gradients", "gradient_buffer")
    one, two = memory(priced(replace(LAYOUT, zero=1)), *names), memory(priced(LAYOUT), *names)
    assert one == pytest.approx(8 * two)


def test_zero_levels_hold_less_and_less() -> None:
    def held(zero: int) -> float:
        table = priced(replace(LAYOUT, zero=zero))
        return float(np.sum([term.bytes[0] for term in table.memory if term.residence != "host"]))

    levels = [held(zero) for zero in (0, 1, 2, 3)]
    assert levels == sorted(levels, reverse=True)
