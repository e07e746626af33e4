import numpy as np
import pytest

from rpegc.cost.gemm import gemm_seconds
from rpegc.cost.roofline import (
    FP8_SPEEDUP_HOPPER,
    attention_backward_seconds,
    attention_forward_seconds,
    elementwise_seconds,
)
from rpegc.hardware import load_machine
from rpegc.validate.kernels import attention_sweep, gemm_sweep
from rpegc.validate.table import Folder

H100 = load_machine("h100-dgx")


@pytest.mark.parametrize(
    ("sweep", "machine", "median", "p90"),
    [
        (gemm_sweep, "h100", 0.045, 0.14),
        (gemm_sweep, "a100", 0.045, 0.14),
        (attention_sweep, "h100", 0.04, 0.12),
        (attention_sweep, "a100", 0.03, 0.07),
    ],
)
def test_curves_match_the_published_kernel_tables(sweep, machine, median, p90):
    found = sweep(Folder())
    here = np.array([machine in source for source in found.sources])
    error = np.abs(found.problem.predict({}, found.problem.everything) / found.problem.measured - 1)[here]
    assert len(error) >= 190
    assert np.median(error) < median
    assert np.quantile(error, 0.9) < p90


def test_a_large_product_reaches_its_asymptote_and_training_is_slower_than_a_short_run():
    size = 65536
    flops = 2 * size**3
    short, trained = H100.accelerator.gemm_asymptote.value, H100.accelerator.gemm_sustained.value
    for sustained, asymptote, lost in ((False, short, 1 + H100.accelerator.gemm_power_loss.value), (True, trained, 1)):
        rate = flops / gemm_seconds(H100, size, size, size, sustained=sustained)
        assert rate * lost == pytest.approx(asymptote, rel=0.02)
    assert trained < short


def test_a_started_wave_of_tiles_counts_in_full():
    """108 multiprocessors, tiles of 256 x 128: 108 tiles take one wave, 120 take two of these or smaller tiles."""
    one, more, two = gemm_seconds(load_machine("a100-80g"), np.array([108, 120, 216]) * 256, 128, 65536)
    assert more / one > 1.25
    assert two == pytest.approx(2 * one, rel=0.02)


def test_grouped_products_cost_what_their_tiles_cost():
    full = gemm_seconds(H100, 65536, 4096, 2048)
    assert gemm_seconds(H100, 65536 / 16, 4096, 2048, groups=16) == pytest.approx(full, rel=0.02)
    assert gemm_seconds(H100, 65536 / 1024, 4096, 2048, groups=1024) > 1.3 * full  # 64 rows do not fill a tile


def test_what_fits_into_the_cache_is_read_from_there_only_when_a_kernel_repeats():
    cached = gemm_seconds(H100, 8192, 32, 1024, sustained=False)
    assert cached < gemm_seconds(H100, 8192, 32, 1024)


def test_a_product_with_few_rows_is_bound_by_reading_its_weights():
    one, sixteen = gemm_seconds(H100, [1, 16], 8192, 8192)
    assert one == pytest.approx(2 * 8192**2 / H100.accelerator.gemm_bandwidth.value, rel=0.1)
    assert sixteen < 1.05 * one


def test_fp8_helps_large_products_and_not_small_ones():
    speedup = FP8_SPEEDUP_HOPPER.value
    gain = gemm_seconds(H100, [8, 32768], 4096, 16384) / gemm_seconds(H100, [8, 32768], 4096, 16384, speedup=speedup)
    assert gain[0] == pytest.approx(1.0, abs=0.01)
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
    assert slow / attention_forward_seconds(H100, 65536, 32, 128, 32768) == pytest.approx(
        H100.accelerator.attention_forward_asymptote.value / 330e12, rel=0.01
    )


def test_small_heads_cost_rate_on_hopper_only():
    def per_flop(machine, head_dim):
        return attention_forward_seconds(load_machine(machine), 65536, 4096 / head_dim, head_dim, 8192)

    assert per_flop("h100-dgx", 64) / per_flop("h100-dgx", 128) == pytest.approx(1 / 0.75, rel=0.01)
    assert per_flop("a100-80g", 64) == per_flop("a100-80g", 128)


def test_attention_backward_takes_three_and_a_third_of_forward():
    assert attention_backward_seconds(3.0) == pytest.approx(10.0)


def test_elementwise_traffic_moves_at_the_achieved_bandwidth():
    assert elementwise_seconds(H100, 2.8e12) == pytest.approx(1.0)
