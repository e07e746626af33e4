"""Properties that every price of a training or forward pass must have, whatever the layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_examples import (
    DENSE,
    FULLY_SHARDED,
    LAYOUTS,
    MACHINE,
    MESH,
    MOE,
    forward,
    seconds,
    train,
    wire_seconds,
    work_of,
)

from rpegc.architecture import Architecture
from rpegc.cost.price import price
from rpegc.cost.table import PROVENANCES, RESIDENCES
from rpegc.cost.training import price_training
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import MeshClass, ShardedLayout, columns_of


@pytest.mark.parametrize("engine_class", ["fsdp", "megatron"])
@pytest.mark.parametrize("architecture", [DENSE, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize("lora_rank", [0, 32])
def test_every_term_of_every_layout_is_finite_and_not_negative(
    engine_class: str, architecture: Architecture, lora_rank: int
) -> None:
    base = work_of(architecture, engine_class=engine_class, lora_rank=lora_rank)
    tables = [train(*LAYOUTS, work=base), forward(*LAYOUTS, work=base)]
    tables.append(forward(*LAYOUTS, work=replace(base, trained=False, head="scalar")))
    for table in tables:
        for time in table.times:
            assert time.provenance in PROVENANCES
            assert time.source
            for values in (time.seconds, time.hidden_seconds):
                assert values.shape == (len(LAYOUTS),)
                assert np.all(np.isfinite(values)), time.name
                # The factor corrects the sum of the others, which came out longer than some frameworks take.
                assert np.all(values >= -1e-9) or time.name == "framework_factor", time.name
        for memory in table.memory:
            assert memory.residence in RESIDENCES
            assert memory.bytes.shape == (len(LAYOUTS),)
            assert np.all(np.isfinite(memory.bytes)), memory.name
            assert np.all(memory.bytes >= 0), memory.name
        assert np.all(table.seconds > 0)
        assert np.allclose(table.completion[:, -1], table.seconds)
        assert table.interval[0] < 1 < table.interval[1]


@settings(max_examples=25, deadline=None)
@given(
    nodes=st.sampled_from([2, 4, 16, 64]),
    budget=st.sampled_from([9216, 16384, 32768]),
    ulysses=st.sampled_from([1, 2, 4]),
    shard=st.sampled_from([4, 8]),
)
def test_more_gpus_never_cost_more_computation_per_gpu(nodes: int, budget: int, ulysses: int, shard: int) -> None:
    compute = []
    for size in (nodes, 2 * nodes):
        mesh = MeshClass(size, 4)
        layout = ShardedLayout(
            dp=mesh.gpus // ulysses, ulysses=ulysses, zero=3, shard_size=shard, token_budget=budget, recompute="full"
        )
        table = train(layout, mesh=mesh)
        compute.append(sum(float(seconds(table, name)[0]) for name in ("attention", "elementwise")))
    assert compute[1] <= compute[0] * (1 + 1e-9)


def test_full_recompute_costs_about_one_more_forward_pass() -> None:
    layouts = [replace(FULLY_SHARDED, recompute=word) for word in ("none", "full")]
    table = train(*layouts)
    layers = ("gemm", "attention", "elementwise")
    once = forward(FULLY_SHARDED)
    one_forward = sum(float(seconds(once, name)[0]) for name in layers)
    # The forward stage packs the whole step at once, so its last micro-batches are slightly fuller.
    assert seconds(table, "recompute")[1] == pytest.approx(one_forward, rel=0.03)
    assert seconds(table, "recompute")[0] == 0


def test_adapters_spare_the_gradients_of_the_base_weights() -> None:
    full, adapters = train(FULLY_SHARDED), train(FULLY_SHARDED, work=work_of(lora_rank=32))
    assert seconds(adapters, "gemm")[0] == pytest.approx(2 / 3 * seconds(full, "gemm")[0], rel=0.05)
    assert seconds(adapters, "optimizer")[0] < 0.05 * seconds(full, "optimizer")[0]


def test_one_expert_of_the_dense_width_costs_about_a_dense_layer() -> None:
    single = replace(
        DENSE, experts=1, experts_per_token=1, expert_intermediate=DENSE.intermediate, dense_layers=0, intermediate=0
    )
    dense, moe = train(FULLY_SHARDED), train(FULLY_SHARDED, work=work_of(single))
    # The grouped GEMM keeps 0.79 of the dense asymptote: the MLP is about 0.7 of the matrix products.
    matrices = seconds(moe, "gemm") + seconds(moe, "experts")
    assert 1.0 <= float(matrices[0] / seconds(dense, "gemm")[0]) < 1.35
    assert moe.bytes("weights")[0] == pytest.approx(dense.bytes("weights")[0], rel=0.01)


def test_forward_shares_weights_and_signature_with_training() -> None:
    trained, passed = train(*LAYOUTS), forward(*LAYOUTS)
    assert trained.signatures == passed.signatures
    assert np.array_equal(trained.signature, passed.signature)
    assert np.array_equal(trained.bytes("weights"), passed.bytes("weights"))
    for number, pairs in enumerate(trained.signatures):
        assert list(pairs) == sorted(pairs)
        of_number = trained.bytes("weights")[trained.signature == number]
        assert np.allclose(of_number, of_number[0])


def test_signature_tells_offloaded_weights_apart() -> None:
    table = train(FULLY_SHARDED, replace(FULLY_SHARDED, offload_parameters=True), FULLY_SHARDED)
    assert table.signature[0] != table.signature[1]
    assert table.signature[0] == table.signature[2]
    assert dict(table.signatures[table.signature[1]]) == {
        **dict(table.signatures[table.signature[0]]),
        "offload": 1,
    }


def test_offloading_costs_seconds() -> None:
    table = train(FULLY_SHARDED, replace(FULLY_SHARDED, offload_parameters=True, offload_optimizer=True))
    assert table.seconds[1] > table.seconds[0] + 2.0
    once = forward(FULLY_SHARDED, replace(FULLY_SHARDED, offload_parameters=True))
    assert once.seconds[1] > once.seconds[0] + 1.0


def test_small_groups_gather_inside_a_node_and_reduce_across() -> None:
    """On 8 nodes a group of one node gathers faster than one of all nodes, but pays an all-reduce per micro-batch."""
    once = forward(replace(FULLY_SHARDED, shard_size=4), FULLY_SHARDED)
    wire = wire_seconds(once, "fully_sharded")
    assert wire[0] < wire[1]


def test_keeping_weights_gathers_less_and_takes_more_memory() -> None:
    table = train(replace(FULLY_SHARDED, zero=2), FULLY_SHARDED)
    wire = wire_seconds(table, "fully_sharded")
    assert wire[0] < wire[1]
    assert table.bytes("working")[0] > table.bytes("working")[1] + 10e9


def test_a_pipeline_waits_less_with_virtual_stages_and_more_micro_batches() -> None:
    work = work_of(engine_class="megatron", framework="megatron-bridge", response_tokens=Lengths.fixed(4096))
    base = ShardedLayout(dp=2, tp=4, pp=4, sequence_parallel=True, zero=1, micro_batch=4)
    table = train(base, replace(base, vpp=3), replace(base, micro_batch=1), work=work)
    bubble = seconds(table, "pipeline_bubble")
    assert bubble[1] == pytest.approx(bubble[0] / 3)
    assert bubble[2] < 0.5 * bubble[0]


def test_few_long_sequences_per_rank_make_the_slowest_rank_late() -> None:
    mesh = MeshClass(32, 4)
    layout = replace(FULLY_SHARDED, dp=128, shard_size=128)
    many = train(layout, work=work_of(prompts=4096), mesh=mesh)
    few = train(layout, work=work_of(prompts=64), mesh=mesh)  # one sequence per rank and update
    share = [float(seconds(t, "length_imbalance")[0] / t.seconds[0]) for t in (many, few)]
    assert share[0] < 0.05
    assert share[1] > 0.3


def test_frozen_models_of_verl_stream_their_weights_from_the_host() -> None:
    table = forward(FULLY_SHARDED, work=work_of(trained=False, role="reference"))
    assert table.bytes("weights")[0] == 0
    assert table.bytes("host")[0] > 4 * DENSE.parameters * 4 / 32
    assert wire_seconds(table, "streamed_weights")[0] > 0


def test_unpublished_gpus_and_frameworks_get_wider_intervals() -> None:
    columns = columns_of([FULLY_SHARDED], MESH)
    known = price_training(work_of(), MESH, columns, load_machine("h100-dgx")).interval
    extrapolated = price_training(work_of(), MESH, columns, MACHINE).interval
    unpublished = price_training(work_of(), MESH, columns, load_machine("h200-dgx")).interval
    unknown = price_training(work_of(framework="native"), MESH, columns, MACHINE).interval
    assert known[1] < extrapolated[1] < unknown[1]
    assert unpublished == extrapolated  # H20 has rows, H200 has none


def test_price_dispatches_on_the_op_and_refuses_functions() -> None:
    columns = columns_of([FULLY_SHARDED], MESH)
    work = work_of()
    assert np.array_equal(price(work, MESH, columns, MACHINE).seconds, train(FULLY_SHARDED).seconds)
    once = price(replace(work, op=Op.FORWARD), MESH, columns, MACHINE)
    assert np.array_equal(once.seconds, forward(FULLY_SHARDED).seconds)
    with pytest.raises(ValueError, match="no layouts"):
        price(replace(work, op=Op.FUNCTION), MESH, columns, MACHINE)


def test_many_layouts_cost_the_same_as_each_alone() -> None:
    together = train(*LAYOUTS).seconds
    alone = [float(train(layout).seconds[0]) for layout in LAYOUTS[::17]]
    assert np.allclose(together[::17], alone)
