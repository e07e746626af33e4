"""The closed forms of [PF] (arXiv 2608.27046) are golden tests; published models check what [PF] leaves out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.architecture import Architecture, ArchitectureError, adam_state_elements, paper_reference
from rpegc.errors import InputError

# GPT-3's shape: 4 d^2 + 2 d d_ff = 12 d^2 = 1 811 939 328 a layer.
GPT3 = paper_reference(layers=96, hidden=12288, intermediate=49152, heads=96, vocabulary=50257)

shapes = st.tuples(
    st.integers(1, 128), st.integers(1, 64), st.integers(1, 256), st.integers(1, 50000), st.integers(1, 200000)
)


def reference(shape: tuple[int, int, int, int, int]) -> Architecture:
    layers, heads, head_dim, intermediate, vocabulary = shape
    return paper_reference(layers, heads * head_dim, intermediate, heads, vocabulary)


@given(shapes)
def test_parameters_of_the_paper(shape):
    model = reference(shape)
    L, d, d_ff, V = model.layers, model.hidden, model.intermediate, model.vocabulary
    assert model.parameters == L * (4 * d * d + 2 * d * d_ff) + V * d
    assert model.active_parameters == model.dense_parameters == model.parameters


def test_parameters_of_gpt3():
    assert GPT3.parameters == 96 * 1_811_939_328 + 50257 * 12288 == 174_563_733_504


@given(shapes, st.integers(1, 10**6), st.integers(1, 10**6))
def test_forward_flops_of_the_paper_per_token(shape, S, T):
    model = reference(shape)
    L, d, d_ff, V = model.layers, model.hidden, model.intermediate, model.vocabulary
    expected = 2 * L * (4 * d * d + 2 * d * d_ff + (S + T) * d) + 2 * V * d
    assert model.forward_flops(1, (S + T) / 2) == pytest.approx(expected, rel=1e-12)
    assert model.training_flops(1, (S + T) / 2) == pytest.approx(3 * expected, rel=1e-12)


@given(shapes, st.integers(1, 10**6))
def test_prefill_flops_of_the_paper(shape, S):
    model = reference(shape)
    L, d, d_ff, V = model.layers, model.hidden, model.intermediate, model.vocabulary
    expected = 2 * L * S * (4 * d * d + 2 * d * d_ff + S * d) + 2 * V * d
    assert model.prefill_flops(S) == pytest.approx(expected, rel=1e-12)


@given(shapes, st.integers(1, 10**5), st.integers(1, 300))
@settings(max_examples=50)
def test_decode_flops_of_the_paper_are_its_sum(shape, S, T):
    model = reference(shape)
    L, d, d_ff, V = model.layers, model.hidden, model.intermediate, model.vocabulary
    expected = sum(2 * L * (4 * d * d + 2 * d * d_ff + 2 * (S + t) * d) + 2 * V * d for t in range(1, T))
    assert model.decode_flops(S, T) == pytest.approx(expected, rel=1e-12)


def test_a_response_that_never_starts_costs_nothing_to_decode():
    assert GPT3.decode_flops(100, 0) == 0


def test_reward_and_critic_heads_of_the_paper():
    S, T = 300, 700
    trunk = GPT3.forward_flops(S + T, (S + T) / 2, head="none")
    critic = GPT3.forward_flops(S + T, (S + T) / 2, head="scalar")
    reward = GPT3.forward_flops(S + T, (S + T) / 2, head="scalar", head_tokens=1)
    assert (critic - trunk) / (S + T) == pytest.approx(2 * 12288)
    assert (reward - trunk) / (S + T) == pytest.approx(2 * 12288 / (S + T))


def test_memory_of_the_paper_in_elements():
    S, T, B = 300, 700, 16
    assert GPT3.kv_elements_per_token * (S + T) == 2 * (S + T) * 96 * 12288
    assert GPT3.kv_bytes_per_token() == 2.0 * 2 * 96 * 12288
    assert GPT3.activation_elements(B * (S + T)) == B * (S + T) * 96 * 12288


@given(st.integers(1, 10**12), st.integers(1, 4096))
def test_model_states_of_the_paper(P, shards):
    assert adam_state_elements(P) == 4 * P
    assert adam_state_elements(P, 1, shards) == pytest.approx(2 * P + 2 * P / shards)
    assert adam_state_elements(P, 2, shards) == pytest.approx(P + 3 * P / shards)
    assert adam_state_elements(P, 3, shards) == pytest.approx(4 * P / shards)


@pytest.mark.parametrize(("stage", "shards"), [(4, 8), (-1, 8), (3, 0)])
def test_impossible_zero_stages_are_refused_with_their_values(stage, shards):
    with pytest.raises(InputError, match=f"got stage {stage} on {shards} shards"):
        adam_state_elements(10, stage, shards)


MIXTURE = Architecture(
    name="mixture",
    family="qwen3_moe",
    hidden=64,
    layers=10,
    vocabulary=1000,
    heads=8,
    kv_heads=2,
    head_dim=16,
    intermediate=96,
    mlp_matrices=3,
    experts=16,
    experts_per_token=4,
    expert_intermediate=24,
    shared_intermediate=40,
    dense_layers=3,
    tied_embeddings=False,
    qk_norm=True,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    max_positions=4096,
)


def test_parameters_equal_the_tensors_listed_one_by_one():
    attention = 64 * 128 + 2 * 64 * 32 + 128 * 64 + (128 + 32 + 32) + 64 + 2 * 16
    dense = 3 * 64 * 96 + 96 + 96 + 64
    expert, shared, router = 3 * 64 * 24, 3 * 64 * 40, 64 * 16
    norms, table = 21 * 64, 1000 * 64
    expected = 10 * attention + 3 * dense + 7 * (16 * expert + shared + router) + norms + 2 * table
    assert MIXTURE.parameters == expected
    assert MIXTURE.expert_parameters_total == 7 * 16 * expert
    assert MIXTURE.dense_parameters == expected - 7 * 16 * expert
    assert MIXTURE.active_parameters == expected - 7 * 12 * expert
    assert MIXTURE.parameters_with_head("scalar") == expected - table + 64
    assert MIXTURE.parameters_with_head("none") == expected - table


def test_a_tied_model_gains_a_row_with_a_scalar_head():
    tied = replace(MIXTURE, tied_embeddings=True)
    assert tied.parameters == MIXTURE.parameters - 1000 * 64
    assert tied.parameters_with_head("scalar") == tied.parameters + 64


def test_flops_count_the_matrices_a_token_meets_and_no_biases():
    attention = 64 * 128 + 2 * 64 * 32 + 128 * 64
    mixture = 4 * 3 * 64 * 24 + 3 * 64 * 40 + 64 * 16
    linear = 2 * (10 * attention + 3 * 3 * 64 * 96 + 7 * mixture)
    scores = 10 * (2 * 8 * 16 * 50 + 2 * 8 * 16 * 50)
    assert MIXTURE.forward_flops(7, 50) == 7 * (linear + scores + 2 * 64 * 1000)


def test_grouped_queries_shrink_the_cache_and_not_the_scores():
    full = replace(MIXTURE, kv_heads=8)
    assert full.kv_elements_per_token == 4 * MIXTURE.kv_elements_per_token
    assert full.attention_flops_per_token(100) == MIXTURE.attention_flops_per_token(100)


@pytest.mark.parametrize(
    ("change", "field", "values"),
    [
        ({"kv_heads": 3}, "heads", "8 / 3"),
        ({"kv_heads": 0}, "heads", "8 / 0"),
        ({"experts_per_token": 17}, "experts_per_token", "17 of 16"),
        ({"expert_intermediate": 0}, "expert_intermediate", "0"),
        ({"dense_layers": 11}, "dense_layers", "11 of 10"),
        ({"intermediate": 0}, "intermediate", "3 layers, intermediate 0"),
        ({"mlp_matrices": 4}, "mlp_matrices", "4"),
        ({"layers": 0, "dense_layers": 0}, "layers", "0"),
        ({"shared_intermediate": -1}, "shared_intermediate", "-1"),
    ],
)
def test_impossible_shapes_are_refused_with_field_and_values(change, field, values):
    with pytest.raises(ArchitectureError, match=values) as caught:
        replace(MIXTURE, **change)
    assert caught.value.field == field


def test_the_paper_reference_needs_heads_that_divide_its_width():
    with pytest.raises(ArchitectureError, match="100 / 3"):
        paper_reference(2, 100, 400, 3, 1000)


def test_an_unknown_head_is_refused_with_a_guess():
    with pytest.raises(InputError, match="did you mean `scalar`"):
        GPT3.forward_flops(1, 1, head="skalar")


def test_importing_the_arithmetic_stays_light():
    heavy = "{'yaml', 'ruamel', 'ruamel.yaml', 'pydantic', 'numpy'}"
    code = (
        f"import sys, rpegc.architecture, rpegc.catalog as c; c.catalogue_models(); print({heavy} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
