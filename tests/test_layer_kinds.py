"""Layers that are not plain attention: sizes tensor by tensor, FLOPs, caches, states, prices and rules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.architecture import (
    Architecture,
    ArchitectureError,
    Attention,
    GatedDelta,
    LatentAttention,
    StateSpace,
    from_document,
    to_document,
)
from rpegc.cost.decode import EngineShape, decode_model
from rpegc.cost.engine_memory import EngineMemory, sequence_slots
from rpegc.cost.engines import engine_of
from rpegc.cost.training import price_training
from rpegc.cost.work import StageWork
from rpegc.errors import InputError
from rpegc.frontend.hf_config import load_architecture
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.search import arithmetic
from rpegc.target import MeshClass, Rule, ShardedLayout, columns_of

MACHINE = load_machine("h100-dgx")
PLAIN = load_architecture("Qwen/Qwen3-8B", Path(), None)


def model(name: str) -> Architecture:
    return load_architecture(name, Path(), None)


def with_layers(*mixers: Attention | LatentAttention | GatedDelta | StateSpace) -> Architecture:
    layers = sum(mixer.layers for mixer in mixers)
    return replace(PLAIN, layers=layers, dense_layers=layers, own_mixers=mixers)


ATTENTION = Attention(layers=4, heads=8, kv_heads=2, head_dim=64)
WINDOW = replace(ATTENTION, reach=100)
LATENT = LatentAttention(layers=4, heads=16, query_rank=96, kv_rank=64, nope_dim=32, rope_dim=16, value_dim=24)
DELTA = GatedDelta(layers=4, key_heads=4, value_heads=8, key_dim=16, value_dim=32, kernel=4)
STATE = StateSpace(layers=4, heads=16, head_dim=8, groups=4, state=32, kernel=4, chunk=64)


# Sizes


def test_latent_attention_has_the_tensors_of_the_paper():
    down = 96 * 1000 + (64 + 16) * 1000
    up = 16 * (32 + 16) * 96 + 16 * (32 + 24) * 64
    assert LATENT.parameters(1000) == down + up + 1000 * 16 * 24 + 96 + 64
    assert replace(LATENT, bias=True).parameters(1000) - LATENT.parameters(1000) == 96 + (64 + 16) + 1000
    assert LATENT.cache_elements == 64 + 16


def test_the_delta_rule_has_the_tensors_of_qwen3_next():
    mixed = 2 * 4 * 16 + 8 * 32
    projections = (mixed + 8 * 32 + 2 * 8) * 1000 + 1000 * 8 * 32
    assert DELTA.parameters(1000) == projections + mixed * 4 + 2 * 8 + 32
    assert DELTA.state_bytes == 8 * 16 * 32 * 4 + mixed * 3 * 2


def test_a_state_space_layer_has_the_tensors_of_mamba2():
    inner, mixed = 128, 128 + 2 * 4 * 32
    assert STATE.parameters(1000) == (inner + mixed + 16) * 1000 + 1000 * inner + mixed * 5 + 3 * 16 + inner
    assert STATE.state_bytes == inner * 32 * 4 + mixed * 3 * 2


def test_a_gate_doubles_queries_and_shared_values_have_no_projection():
    plain = ATTENTION.parameters(512)
    assert replace(ATTENTION, gated=True).parameters(512) - plain == 8 * 64 * 512
    assert plain - replace(ATTENTION, shared_values=True).parameters(512) == 2 * 64 * 512
    assert replace(ATTENTION, sinks=True).parameters(512) - plain == 8


def test_experts_on_a_latent_are_smaller_and_have_two_projections_around_them():
    super_model = model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16")
    assert super_model.expert_parameters == 2 * 1024 * 2688
    assert super_model.shared_expert_parameters == 2 * 4096 * 5376 + 2 * 4096 * 1024


# FLOPs and caches under windows


@given(st.integers(1, 3000), st.integers(0, 2000), st.integers(1, 1500))
@settings(deadline=None)
def test_a_window_attends_to_no_more_than_it_reaches(window, prompt, steps):
    mixer = replace(ATTENTION, reach=window)
    each = [min(prompt + step, window) for step in range(1, steps + 1)]
    assert mixer.attended_in_decode(prompt, steps) == pytest.approx(sum(each) / steps)
    length = prompt + steps
    mean = sum(min(position, window) for position in range(1, length + 1)) / length
    assert mixer.attended_in_pass(length / 2) == pytest.approx(mean, abs=1.0)
    assert mixer.cached(length) == min(length, window)


@given(st.integers(1, 500), st.integers(1, 40))
@settings(deadline=None)
def test_blocks_attend_inside_themselves(block, blocks):
    mixer = replace(ATTENTION, reach=block, chunked=True)
    length = block * blocks
    mean = sum(position % block + 1 for position in range(length)) / length
    assert mixer.attended_in_pass(length / 2) == pytest.approx(mean, abs=1.0)


def test_only_layers_without_a_window_grow_with_the_context():
    both = with_layers(ATTENTION, WINDOW)
    more = both.attention_flops_per_token(5000) - both.attention_flops_per_token(4000)
    assert more == 4.0 * 4 * 8 * 64 * 1000
    assert both.training_flops(1, 2000) < with_layers(replace(ATTENTION, layers=8)).training_flops(1, 2000)


def test_a_recurrence_costs_the_same_wherever_the_token_stands():
    hybrid = with_layers(ATTENTION, DELTA)
    only = with_layers(ATTENTION)
    flops = hybrid.forward_flops(1, 10_000, "none") - only.forward_flops(1, 10_000, "none")
    assert flops == hybrid.forward_flops(1, 10, "none") - only.forward_flops(1, 10, "none")
    linear = DELTA.matrix_parameters(PLAIN.hidden) + PLAIN.dense_mlp_matrix_parameters
    assert flops == pytest.approx(4 * (2 * linear + DELTA.scan_flops))


def test_published_hybrids_keep_little_for_long_sequences():
    dense, hybrid = model("Qwen/Qwen3-30B-A3B"), model("Qwen/Qwen3.5-35B-A3B")
    short, long = 1_000, 100_000
    assert hybrid.sequence_bytes_per_rank(long, 1) < 0.3 * dense.sequence_bytes_per_rank(long, 1)
    growth = hybrid.sequence_bytes_per_rank(long, 1) - hybrid.sequence_bytes_per_rank(short, 1)
    assert growth == 2 * hybrid.kv_elements_per_token * (long - short)
    assert hybrid.sequence_bytes_per_rank(0, 4) == hybrid.state_bytes / 4


# Prices


def engine_shape(tp: int) -> EngineShape:
    one = np.array([tp])
    return EngineShape(one, np.array([1]), np.array([1]), np.zeros(1), np.full(1, 2.0), np.full(1, 2.0), 8)


def kv_seconds(architecture: Architecture, context: float, tp: int = 1) -> float:
    decode = decode_model(architecture, MACHINE, engine_of(frozenset()), engine_shape(tp))
    return float(decode.step(np.array([[64.0]]), np.array([[context]])).kv_read[0, 0])


def test_decoding_reads_a_window_once_it_is_full_and_a_state_always():
    windowed, hybrid = with_layers(WINDOW), with_layers(ATTENTION, DELTA)
    assert kv_seconds(windowed, 100) == kv_seconds(windowed, 50_000)
    assert kv_seconds(hybrid, 0) > 0
    assert kv_seconds(hybrid, 0, tp=2) == pytest.approx(kv_seconds(hybrid, 0) / 2)


def test_every_rank_reads_the_whole_latent():
    latent = with_layers(replace(LATENT, heads=1))
    assert kv_seconds(latent, 1000, tp=4) == kv_seconds(latent, 1000)
    wide = with_layers(replace(LATENT, heads=4096))  # so many heads that scoring takes longer than reading
    assert kv_seconds(wide, 1000, tp=4) == pytest.approx(kv_seconds(wide, 1000) / 4)


def test_an_engine_holds_more_sequences_of_a_model_with_windows():
    free = EngineMemory(np.zeros(1), np.zeros(1), np.full(1, 4e9))
    columns = {"max_sequences": np.array([1 << 20])}
    prompt, response = Lengths.fixed(1000), Lengths.fixed(7000)

    def slots(architecture: Architecture) -> float:
        found, runs = sequence_slots(free, architecture, engine_shape(1), columns, prompt, response)
        assert runs[0]
        return float(found[0])

    full = with_layers(replace(ATTENTION, layers=8))
    assert slots(with_layers(ATTENTION, WINDOW)) == pytest.approx(slots(full) * 16000 / 8100, rel=0.01)
    assert slots(with_layers(ATTENTION, DELTA)) > 1.5 * slots(full)


def training_terms(architecture: Architecture, **degrees: int) -> dict[str, float]:
    mesh = MeshClass(nodes=1, gpus_per_node=8)
    tp = degrees.get("tp", 1)
    layout = ShardedLayout(dp=8 // tp, zero=3, shard_size=8 // tp, recompute="full", token_budget=32768, **degrees)
    work = StageWork(
        stage="update",
        op=Op.TRAIN,
        role="actor",
        architecture=architecture,
        framework="verl",
        engine_class="fsdp",
        prompts=64,
        samples_per_prompt=8,
        minibatches=1,
        epochs=1,
        prompt_tokens=Lengths.fixed(1000),
        response_tokens=Lengths.fixed(15000),
        trained=True,
    )
    table = price_training(work, mesh, columns_of([layout], mesh), MACHINE)
    return {term.name: float(term.seconds[0]) for term in table.times}


def test_a_window_makes_attention_quicker_in_training():
    full = training_terms(with_layers(replace(ATTENTION, layers=8)))
    mixed = training_terms(with_layers(ATTENTION, WINDOW))
    assert mixed["attention"] < 0.6 * full["attention"]
    assert mixed["gemm"] == pytest.approx(full["gemm"])
    assert "recurrence" not in mixed


def test_a_recurrence_is_a_term_of_its_own_and_replaces_attention():
    hybrid = training_terms(with_layers(ATTENTION, DELTA))
    half = training_terms(with_layers(ATTENTION))
    assert hybrid["recurrence"] > 0
    assert hybrid["attention"] == pytest.approx(half["attention"])


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-ai/DeepSeek-V3",
        "openai/gpt-oss-20b",
        "Qwen/Qwen3.5-35B-A3B",
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        "google/gemma-3-27b-it",
        "meta-llama/Llama-4-Scout-17B-16E",
    ],
)
def test_every_kind_of_model_has_finite_prices(name):
    terms = training_terms(model(name))
    assert all(np.isfinite(seconds) and seconds >= 0 for seconds in terms.values())
    assert terms["gemm"] > 0
    assert terms["attention"] > 0


# Rules


def broken(rules: tuple[Rule, ...], **columns: int) -> set[str]:
    facts = {"heads": 32, "layers": 48, "experts": 0, "gpus": 8, "sequences_per_pass": 512, "sequences_per_step": 512}
    degrees = dict.fromkeys(("cp", "ulysses", "tp", "pp", "vpp", "ep", "etp", "engine_dp"), 1)
    table = {key: np.array([value]) for key, value in {**facts, **degrees, **columns}.items()}
    return {rule.name for rule in rules if not np.all(rule.allows(table))}


def test_which_parallelism_each_kind_of_layer_allows():
    hybrid = model("Qwen/Qwen3.5-35B-A3B")
    facts = {"recurrent_layers": hybrid.recurrent_layers, "recurrent_heads": hybrid.recurrent_heads}
    assert facts == {"recurrent_layers": 30, "recurrent_heads": 16}
    assert broken(arithmetic.SHARDED_DEGREES, tp=4, **facts) == set()
    assert broken(arithmetic.SHARDED_DEGREES, cp=2, **facts) == {"recurrent-layers-hold-a-sequence"}
    assert broken(arithmetic.SHARDED_DEGREES, ulysses=2, **facts) == {"recurrent-layers-hold-a-sequence"}
    assert broken(arithmetic.ENGINE, tp=8, **{**facts, "recurrent_heads": 4}) == {"recurrent-heads-divide"}
    sinks = {"sink_layers": model("openai/gpt-oss-20b").sink_layers}
    assert sinks == {"sink_layers": 24}
    assert broken(arithmetic.SHARDED_DEGREES, ulysses=2, **sinks) == {"softmax-offsets-stay-with-their-heads"}
    assert broken(arithmetic.SHARDED_DEGREES, ulysses=2, cp=2) == set()


# Documents and impossible shapes


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.5-27B"])
def test_an_architecture_survives_its_document(name):
    known = model(name)
    assert from_document(json.loads(json.dumps(to_document(known)))) == known


def test_plain_attention_needs_no_word_on_mixers():
    assert not {"own_mixers", "bare_layers", "left_out"} & to_document(PLAIN).keys()


def test_a_document_with_an_unknown_layer_is_refused_with_a_guess():
    document = to_document(model("Qwen/Qwen3.5-27B"))
    document["own_mixers"][0]["kind"] = "atention"
    with pytest.raises(InputError, match="did you mean `attention`"):
        from_document(document)


@pytest.mark.parametrize(
    ("mixers", "words"),
    [((replace(DELTA, layers=36),), "at least one layer must be attention"), ((ATTENTION, DELTA), "8 in 6 layers")],
)
def test_layers_that_do_not_add_up_are_refused(mixers, words):
    layers = 36 if len(mixers) == 1 else 6
    with pytest.raises(ArchitectureError, match=words):
        replace(PLAIN, layers=layers, dense_layers=layers, own_mixers=mixers)
