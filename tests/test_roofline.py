import csv
from pathlib import Path

import numpy as np
import pytest

from rpegc.cost.roofline import (
    FP8_SPEEDUP_HOPPER,
    attention_backward_seconds,
    attention_forward_seconds,
    elementwise_seconds,
    gemm_seconds,
)
from rpegc.hardware import load_machine

MEASURED = Path(__file__).parent / "data" / "measured"
H100 = load_machine("h100-dgx")


def measured(name, machine):
    with (MEASURED / name).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["machine"] == machine]
    numbers = [key for key in rows[0] if key not in ("machine", "source")]
    return {key: np.array([float(row[key]) for row in rows]) for key in numbers}


def errors(seconds, latency_ms):
    return np.abs(seconds / (latency_ms * 1e-3) - 1)


@pytest.mark.parametrize(("machine", "median", "p90"), [("h100-dgx", 0.05, 0.19), ("a100-80g", 0.075, 0.17)])
def test_matrix_products_match_the_published_kernel_tables(machine, median, p90):
    rows = measured("gemm_kernels.csv", machine)
    error = errors(gemm_seconds(load_machine(machine), rows["m"], rows["n"], rows["k"], False), rows["latency_ms"])
    assert len(error) == 200
    assert np.median(error) < median
    assert np.quantile(error, 0.9) < p90


@pytest.mark.parametrize(("machine", "median", "p90"), [("h100-dgx", 0.115, 0.46), ("a100-80g", 0.07, 0.25)])
def test_attention_matches_the_published_kernel_tables(machine, median, p90):
    rows = measured("attention_kernels.csv", machine)
    tokens, context = rows["batch_size"] * rows["sequence_tokens"], rows["sequence_tokens"] / 2
    seconds = attention_forward_seconds(
        load_machine(machine), tokens, rows["heads"], rows["head_dim"], context, rows["kv_heads"], sustained=False
    )
    error = errors(seconds, rows["latency_ms"])
    assert len(error) == 200
    assert np.median(error) < median
    assert np.quantile(error, 0.9) < p90


def test_a_large_product_reaches_its_asymptote_and_training_is_slower_than_a_short_run():
    size = 65536
    flops = 2 * size**3
    assert flops / gemm_seconds(H100, size, size, size, sustained=False) == pytest.approx(874e12, rel=0.01)
    assert flops / gemm_seconds(H100, size, size, size) == pytest.approx(660e12, rel=0.01)


def test_a_product_with_few_rows_is_bound_by_reading_its_weights():
    one, sixteen = gemm_seconds(H100, [1, 16], 8192, 8192)
    assert one == pytest.approx(2 * 8192**2 / 2.81e12, rel=0.1)
    assert sixteen < 1.05 * one


def test_fp8_helps_large_products_and_not_small_ones():
    speedup = FP8_SPEEDUP_HOPPER.value
    gain = gemm_seconds(H100, [8, 32768], 4096, 16384) / gemm_seconds(H100, [8, 32768], 4096, 16384, speedup=speedup)
    assert gain[0] == pytest.approx(1.0)
    assert 1.7 < gain[1] < speedup


def test_shapes_broadcast():
    assert gemm_seconds(H100, np.ones((3, 1)) * 512, np.ones(4) * 1024, 2048).shape == (3, 4)
    assert attention_forward_seconds(H100, np.full((2, 1), 4096), 32, 128, np.array([512, 1024, 2048])).shape == (2, 3)
    assert elementwise_seconds(H100, [1e9, 2e9]).shape == (2,)


def test_nothing_to_do_takes_no_time():
    assert gemm_seconds(H100, 0, 4096, 4096) == 0
    assert attention_forward_seconds(H100, 0, 32, 128, 1024) == 0
    assert attention_forward_seconds(H100, 4096, 32, 128, 0) == 0


def test_attention_of_short_sequences_runs_at_a_lower_rate():
    context = np.array([128.0, 1024.0, 16384.0])
    rate = 4 * 32768 * 32 * 128 * context / attention_forward_seconds(H100, 32768, 32, 128, context)
    assert np.all(np.diff(rate) > 0)
    assert rate[-1] < H100.accelerator.attention_forward_asymptote.value


def test_a_known_kernel_replaces_the_asymptote_of_attention():
    slow = attention_forward_seconds(H100, 65536, 32, 128, 32768, asymptote=330e12)
    assert slow / attention_forward_seconds(H100, 65536, 32, 128, 32768) == pytest.approx(400.4 / 330, rel=0.01)


def test_small_heads_cost_rate_on_hopper_only():
    def per_flop(machine, head_dim):
        return attention_forward_seconds(load_machine(machine), 65536, 4096 / head_dim, head_dim, 8192)

    assert per_flop("h100-dgx", 64) / per_flop("h100-dgx", 128) == pytest.approx(1 / 0.75, rel=0.01)
    assert per_flop("a100-80g", 64) == per_flop("a100-80g", 128)


def test_attention_backward_takes_three_and_a_third_of_forward():
    assert attention_backward_seconds(3.0) == pytest.approx(10.0)


def test_elementwise_traffic_moves_at_the_achieved_bandwidth():
    assert elementwise_seconds(H100, 2.8e12) == pytest.approx(1.0)
