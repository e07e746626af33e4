"""The price of generation behaves as an engine does: memory, lengths, engine modes, the tail, and the bill adds up."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.architecture import Architecture
from rpegc.cost.generation import COMPLETION_PARTS, price_generation
from rpegc.cost.rollout import length_grid, roll_out
from rpegc.cost.table import PROVENANCES, RESIDENCES, PriceTable
from rpegc.cost.work import StageWork
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import EngineLayout, MeshClass, columns_of

H100, ALPS = load_machine("h100-dgx"), load_machine("gh200-alps")
DENSE = Architecture(
    name="8B",
    family="qwen3",
    hidden=4096,
    layers=36,
    vocabulary=151936,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=12288,
    mlp_matrices=3,
    dense_layers=36,
    tied_embeddings=False,
    qk_norm=True,
    qkv_bias=False,
    output_bias=False,
    max_positions=40960,
)
MIXTURE = replace(
    DENSE,
    name="30B-A3B",
    hidden=2048,
    layers=48,
    kv_heads=4,
    intermediate=0,
    dense_layers=0,
    experts=128,
    experts_per_token=8,
    expert_intermediate=768,
)
WORK = StageWork(
    stage="generate",
    op=Op.GENERATE,
    role="actor",
    architecture=DENSE,
    framework="verl",
    engine_class="fsdp",
    prompts=128,
    samples_per_prompt=16,
    minibatches=1,
    epochs=1,
    prompt_tokens=Lengths.from_mean(300, 1024),
    response_tokens=Lengths.from_mean(3000, 8192),
)
LONGER = replace(WORK, response_tokens=Lengths.from_mean(5000, 8192))


def price(*layouts: EngineLayout, work: StageWork = WORK, nodes: int = 4, machine=ALPS) -> PriceTable:
    mesh = MeshClass(nodes, machine.gpus_per_node)
    return price_generation(work, mesh, columns_of(list(layouts), mesh), machine)


def layout(gpus: int = 16, tp: int = 1, engine_dp: int = 1, **rest) -> EngineLayout:
    return EngineLayout(replicas=gpus // tp // engine_dp, tp=tp, engine_dp=engine_dp, **rest)


SPREAD = [
    layout(tp=tp, memory_fraction=fraction, max_sequences=sequences, offload=True)
    for tp in (1, 2, 4)
    for fraction in (0.3, 0.5, 0.8)
    for sequences in (32, 128, 256, 1024)
]


@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_every_row_has_a_complete_bill(model: Architecture) -> None:
    table = price(*SPREAD, work=replace(WORK, architecture=model))
    finite = np.isfinite(table.seconds)
    assert finite.sum() >= 24  # the 30B model does not fit into 30 % of one GPU
    assert not np.isnan(table.seconds).any()
    assert not np.isnan(table.completion).any()
    for term in table.times:
        assert np.all(term.seconds >= 0.0)
        assert term.provenance in PROVENANCES
        assert term.source
    for amount in table.memory:
        assert np.all(amount.bytes >= 0.0)
        assert amount.residence in RESIDENCES
    assert table.completion.shape == (len(SPREAD), COMPLETION_PARTS)
    assert np.array_equal(table.completion[:, -1], table.seconds)
    assert np.all(np.diff(table.completion[finite], axis=1) >= 0.0)
    experts = next(term for term in table.times if term.name == "expert_read")
    assert (experts.seconds[finite].min() > 0) == (model is MIXTURE)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    tp=st.sampled_from([1, 2, 4]),
    sequences=st.sampled_from([16, 64, 256, 1024]),
    mean=st.integers(100, 7000),
    prompts=st.integers(1, 512),
)
def test_more_kv_memory_never_costs_time(tp: int, sequences: int, mean: int, prompts: int) -> None:
    work = replace(WORK, prompts=prompts, response_tokens=Lengths.from_mean(mean, 8192))
    rows = [layout(tp=tp, max_sequences=sequences, memory_fraction=0.2 + 0.02 * i) for i in range(35)]
    seconds = price(*rows, work=work).seconds
    seconds = seconds[np.isfinite(seconds)]
    # The drain of a short queue is an approximation: it may wobble by half a per cent where the queue disappears.
    assert np.all(seconds[1:] <= seconds[:-1] * 1.008)
    assert seconds[-1] <= seconds[0] + 1e-9


@settings(max_examples=25, deadline=None, derandomize=True)
@given(mean=st.integers(100, 6000), growth=st.floats(1.02, 1.3), tp=st.sampled_from([1, 4]))
def test_longer_responses_cost_more(mean: int, growth: float, tp: int) -> None:
    rows = [layout(tp=tp), layout(tp=tp, max_sequences=64)]
    lengths = [Lengths.from_mean(value, 8192, 1.0) for value in (mean, mean * growth)]
    short, long = (price(*rows, work=replace(WORK, response_tokens=given)).seconds for given in lengths)
    assert np.all(long > short)


def test_a_cache_too_small_for_one_long_sequence_makes_the_layout_impossible() -> None:
    long = replace(WORK, response_tokens=Lengths.from_mean(3000, 38000))
    table = price(layout(memory_fraction=0.22), layout(memory_fraction=0.6), work=long)
    assert np.isinf(table.seconds[0])
    assert np.isinf(table.completion[0]).all()
    assert np.isfinite(table.seconds[1])


def test_the_step_ends_with_the_slowest_replica() -> None:
    one, many = price(layout(gpus=4), nodes=1), price(layout(gpus=64), nodes=16, work=replace(WORK, prompts=128 * 16))
    tails = [next(t.seconds[0] for t in table.times if t.name == "tail") for table in (one, many)]
    assert tails[1] > tails[0]  # the same work per replica, but the longest of more samples
    assert many.seconds[0] > one.seconds[0]


def test_equal_lengths_leave_no_tail_and_no_early_samples() -> None:
    table = price(
        layout(max_sequences=512, memory_fraction=0.8), work=replace(WORK, response_tokens=Lengths.fixed(500))
    )
    tail = next(t.seconds[0] for t in table.times if t.name == "tail")
    assert tail < 0.02 * table.seconds[0]
    assert table.completion[0, 0] > 0.9 * table.seconds[0]


def test_samples_finish_early_when_lengths_vary() -> None:
    table = price(layout(max_sequences=512, memory_fraction=0.8))
    assert table.completion[0, 3] < 0.6 * table.seconds[0]  # half of the samples


@pytest.mark.parametrize("slots", [8, 40, 64, 90])
@pytest.mark.parametrize(
    "lengths", [Lengths.from_mean(1000, 4000, 0.9), Lengths.from_histogram([(100, 3), (2000, 1)], 2000)]
)
def test_the_fluid_rollout_agrees_with_a_simulation_of_every_sequence(lengths: Lengths, slots: int) -> None:
    fixed_s, sequence_s, sequences, replicas = 10e-3, 0.1e-3, 80, 4
    ones = np.ones(1)
    rollout = roll_out(
        lengths,
        length_grid(lengths, sequences * replicas),
        100.0,
        ones * sequences,
        ones * slots,
        ones * replicas,
        ones,
    )
    step = fixed_s + sequence_s * rollout.active
    predicted = float(np.sum(rollout.steps * np.maximum(rollout.busy_slowest, rollout.busy_mean) * step))
    rng = np.random.default_rng(5)
    simulated = [
        max(
            simulate(lengths.sample(rng, sequences, 1, 0.0)[:, 0].tolist(), slots, fixed_s, sequence_s)
            for _ in range(replicas)
        )
        for _ in range(60)
    ]
    assert predicted == pytest.approx(np.mean(simulated), rel=0.06)
    assert float(np.sum(rollout.steps * rollout.busy_mean * rollout.active)) == pytest.approx(sequences * lengths.mean)


def simulate(lengths: list[int], slots: int, fixed_s: float, sequence_s: float) -> float:
    """Run a queue of sequences through `slots`, refilled as they free; return the seconds until the last ends."""
    waiting, running, step, seconds = lengths[slots:], sorted(lengths[:slots]), 0, 0.0
    while running:
        end = heapq.heappop(running)
        seconds += (end - step) * (fixed_s + sequence_s * (len(running) + 1))
        step = end
        if waiting:
            heapq.heappush(running, step + waiting.pop())
    return seconds


@pytest.mark.parametrize("flag", ["eager", "old_engine", "lora", "no_prefix_caching"])
def test_slow_engine_modes_cost_time(flag: str) -> None:
    plain, slow = price(layout()), price(layout(), work=replace(WORK, engine_flags=frozenset({flag})))
    assert slow.seconds[0] > plain.seconds[0]


def test_the_interval_widens_with_what_is_unknown() -> None:
    known = price(layout(gpus=32), machine=H100).interval[1]
    extrapolated = price(layout()).interval[1]
    unstated = price(layout(), work=replace(WORK, engine_flags=frozenset({"mode_unstated"}))).interval[1]
    assert known < extrapolated < unstated
    assert price(layout()).interval[0] * extrapolated == pytest.approx(1.0)


def test_tensor_parallel_groups_that_leave_a_node_pay_for_it() -> None:
    inside, outside = price(layout(tp=4)), price(layout(tp=8))
    reduce = [next(t.seconds[0] for t in table.times if t.name == "tensor_parallel") for table in (inside, outside)]
    mode = [next(t.seconds[0] for t in table.times if t.name == "engine_mode") for table in (inside, outside)]
    assert reduce[1] > reduce[0]
    assert mode[0] == 0.0 < mode[1]


def test_the_engine_holds_its_share_while_it_runs_or_always() -> None:
    table = price(layout(memory_fraction=0.6, offload=True), layout(memory_fraction=0.6))
    share = 0.6 * ALPS.accelerator.hbm_bytes.value
    assert table.bytes("working") == pytest.approx([share, 0.0])
    residue = table.bytes("resident")[0]
    assert 0.5e9 < residue < 3e9
    assert table.bytes("resident")[1] == pytest.approx(share + residue)
    names = [term.name for term in table.memory]
    assert len(names) == len(set(names))


def test_sleeping_with_adapters_keeps_the_base_weights_in_host_memory() -> None:
    lora = replace(WORK, engine_flags=frozenset({"lora"}))
    plain, adapted = price(layout(offload=True)), price(layout(offload=True), work=lora)
    assert adapted.bytes("host")[0] - plain.bytes("host")[0] == pytest.approx(4 * DENSE.parameters * 2.0, rel=0.01)


def test_fp8_halves_the_weights_and_speeds_up_decoding() -> None:
    table = price(layout(), layout(precision="fp8"))
    weights = next(term.bytes for term in table.memory if term.name == "engine_weights_kept")
    assert weights[1] < 0.65 * weights[0]
    assert table.seconds[1] < table.seconds[0]


def test_engines_that_share_experts_fit_a_model_that_one_gpu_cannot_hold() -> None:
    large = replace(MIXTURE, expert_intermediate=1536, hidden=4096, layers=94)
    apart, together = layout(gpus=16), layout(gpus=16, engine_dp=16, ep=16, memory_fraction=0.8)
    table = price(apart, together, work=replace(WORK, architecture=large))
    assert np.isinf(table.seconds[0])
    assert np.isfinite(table.seconds[1])


def test_equal_signatures_mean_equal_weight_layouts() -> None:
    table = price(layout(), layout(max_sequences=64), layout(tp=2), layout(precision="fp8"))
    assert table.signature[0] == table.signature[1]
    assert len(set(table.signature.tolist())) == 3
    chosen = dict(table.signatures[table.signature[2]])
    assert chosen["tp"] == 2
    assert chosen["replicas"] == 8
    assert list(chosen) == sorted(chosen)


def test_rows_do_not_influence_each_other() -> None:
    together = price(*(SPREAD * 40)).seconds[: len(SPREAD)]
    alone = np.array([price(one).seconds[0] for one in SPREAD])
    assert together == pytest.approx(alone, rel=1e-12)
