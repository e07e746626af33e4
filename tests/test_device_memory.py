"""Device memory of training: against printed peaks, and as users would expect it to move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured_training import cases, price_case, summary
from training_examples import DENSE, FULLY_SHARDED, LAYOUTS, MESH, MOE, forward, train, work_of

from rpegc.cost.table import PriceTable
from rpegc.units import GIB


def _peak(table: PriceTable) -> float:
    return float(sum(table.bytes(residence)[0] for residence in ("weights", "resident", "working")))


def _bytes(table: PriceTable, name: str, row: int = 0) -> float:
    return float(next(term.bytes[row] for term in table.memory if term.name == name))


def test_peaks_match_printed_rows() -> None:
    errors: dict[str, list[float]] = {}
    for case in cases(memory=True):
        errors.setdefault(case.framework.split()[0], []).append(_peak(price_case(case)) / case.peak_bytes - 1.0)
    everything = [error for values in errors.values() for error in values]
    for family, values in [*errors.items(), ("all", everything)]:
        median, p90, bias = summary(values)
        print(f"{family}: {len(values)} rows, median {median:.1%}, p90 {p90:.1%}, bias {bias:+.1%}")
    assert len(everything) >= 41
    for family in ("prime-rl", "torchtitan"):
        assert summary(errors[family])[0] <= 0.06
    assert summary(everything)[1] <= 0.10
    assert abs(summary(everything)[2]) <= 0.03


@pytest.mark.parametrize("architecture", [DENSE, MOE], ids=["dense", "moe"])
def test_larger_token_budgets_never_need_less(architecture: object) -> None:
    budgets = (9216, 12288, 16384, 32768, 65536)
    layouts = [
        replace(FULLY_SHARDED, token_budget=budget, recompute=word) for word in ("none", "full") for budget in budgets
    ]
    work = work_of(architecture)  # type: ignore[arg-type]
    for table in (train(*layouts, work=work), forward(*layouts, work=work)):
        working = table.bytes("working").reshape(2, len(budgets))
        assert np.all(np.diff(working, axis=1) > 0)


def test_a_budget_below_the_longest_sequence_still_holds_it() -> None:
    longest = work_of().max_tokens
    table = train(replace(FULLY_SHARDED, token_budget=1024), replace(FULLY_SHARDED, token_budget=longest))
    # The larger of the logits and their gradient, and of a layer that is recomputed, beside the inputs of all layers.
    inputs = 2.0 * longest * DENSE.hidden * DENSE.layers
    assert _bytes(table, "activations", 0) >= inputs
    assert _bytes(table, "activations", 0) + _bytes(table, "logits", 0) >= inputs + 4.0 * longest * DENSE.vocabulary
    assert _bytes(table, "logits", 1) >= _bytes(table, "logits", 0)


def test_full_sharding_divides_sixteen_bytes_per_parameter() -> None:
    table = train(replace(FULLY_SHARDED, shard_size=4), FULLY_SHARDED)
    for row, shard in enumerate((4, 32)):
        states = sum(_bytes(table, name, row) for name in ("weights", "gradients", "optimizer"))
        assert states == pytest.approx(16 * DENSE.parameters / shard)


def test_megatron_keeps_six_bytes_and_spreads_twelve() -> None:
    layout = replace(FULLY_SHARDED, dp=16, tp=2, zero=1, shard_size=1, sequence_parallel=True)
    table = train(layout, work=work_of(engine_class="megatron"))
    assert _bytes(table, "weights") + _bytes(table, "gradient_buffer") == pytest.approx(6 * DENSE.parameters / 2)
    assert _bytes(table, "optimizer") == pytest.approx(12 * DENSE.parameters / 2 / 16)


def test_offloaded_states_are_working_memory_only() -> None:
    table = train(FULLY_SHARDED, replace(FULLY_SHARDED, offload_parameters=True, offload_optimizer=True))
    assert _bytes(table, "weights", 1) == _bytes(table, "optimizer", 1) == 0
    assert table.bytes("working")[1] - table.bytes("working")[0] == pytest.approx(12 * DENSE.parameters / 32)
    assert table.bytes("resident")[1] == pytest.approx(1.2 * GIB)


def test_adapters_need_neither_gradients_nor_moments_of_the_base() -> None:
    table = train(FULLY_SHARDED, work=work_of(lora_rank=32))
    assert _bytes(table, "weights") == pytest.approx(4 * DENSE.parameters / 32)
    assert _bytes(table, "optimizer") < 0.02 * 8 * DENSE.parameters / 32


def test_recompute_and_activation_offload_save_memory() -> None:
    layouts = [
        replace(FULLY_SHARDED, recompute="none"),
        FULLY_SHARDED,
        replace(FULLY_SHARDED, offload_activations=True),
    ]
    table = train(*layouts)
    activations = [_bytes(table, "activations", row) for row in range(3)]
    assert activations[0] > 3 * activations[1] > 3 * activations[2]


def test_ulysses_shares_the_longest_sequence() -> None:
    layouts = [replace(FULLY_SHARDED, dp=32 // u, ulysses=u, token_budget=9216 // u) for u in (1, 2, 4)]
    table = train(*layouts)
    logits = [_bytes(table, "logits", row) for row in range(3)]
    assert logits[0] == pytest.approx(2 * logits[1], rel=0.01)
    assert logits[1] == pytest.approx(2 * logits[2], rel=0.01)


def test_a_scalar_head_has_no_logits() -> None:
    table = train(*LAYOUTS, work=work_of(head="scalar"))
    assert all(_bytes(table, "logits", row) == 0 for row in range(len(LAYOUTS)))


def test_a_pass_needs_less_than_an_update() -> None:
    assert np.all(forward(*LAYOUTS).bytes("working") <= train(*LAYOUTS).bytes("working"))


def test_mesh_has_as_many_gpus_as_the_layouts_use() -> None:
    for layout in LAYOUTS:
        assert layout.dp * layout.cp * layout.ulysses * layout.tp * layout.pp == MESH.gpus
