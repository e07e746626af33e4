"""Reading a `config.json`: published models come out at their published size, everything else is refused by name."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.architecture import Architecture
from rpegc.errors import InputError, SourcePosition
from rpegc.frontend.config_json import MAX_CONFIG_BYTES, ModelConfig
from rpegc.frontend.hf_config import load_architecture, read_architecture

MODELS = Path(__file__).parent / "data" / "models"
HERE = SourcePosition("pipeline.yaml", 4, 19, "  actor: {config: model}")

ACCEPTED = {
    "Qwen3-0.6B": "Qwen/Qwen3-0.6B",
    "Qwen3-1.7B": "Qwen/Qwen3-1.7B",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
    "Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
    "Qwen3-Coder-480B-A35B-Instruct": "Qwen/Qwen3-Coder-480B-A35B-Instruct",
    "Meta-Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
    "Meta-Llama-3.1-70B": "meta-llama/Llama-3.1-70B",
    "Meta-Llama-3.1-405B": "meta-llama/Llama-3.1-405B",
}

# The others, as the catalogue has them: same layers, same sizes.
OTHERS = {
    "DeepSeek-R1": "deepseek-ai/DeepSeek-R1",
    "DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
    "Kimi-K2-Instruct": "moonshotai/Kimi-K2-Instruct",
    "Mixtral-8x22B-v0.1": "mistralai/Mixtral-8x22B-v0.1",
    "Mixtral-8x7B-v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen3-VL-8B-Instruct": "Qwen/Qwen3-VL-8B-Instruct",
    "Qwen3.5-35B-A3B": "Qwen/Qwen3.5-35B-A3B",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
}

LLAMA = json.loads((MODELS / "Meta-Llama-3.1-8B.json").read_text())
QWEN3 = json.loads((MODELS / "Qwen3-8B.json").read_text())
MIXTURE = json.loads((MODELS / "Qwen3-30B-A3B.json").read_text())
DEEPSEEK = json.loads((MODELS / "DeepSeek-V3.json").read_text())
GPT_OSS = json.loads((MODELS / "gpt-oss-20b.json").read_text())
NEMOTRON = json.loads((MODELS / "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json").read_text())
DELTA = json.loads((MODELS / "Qwen3.5-35B-A3B.json").read_text())
VISION = json.loads((MODELS / "Qwen3-VL-8B-Instruct.json").read_text())


def load(facts: object, folder: Path) -> Architecture:
    text = facts if isinstance(facts, str) else json.dumps(facts, indent=2)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return load_architecture(".", folder, HERE)


def refusal(facts: object, folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        load(facts, folder)
    return caught.value


def test_an_unknown_name_points_into_the_pipeline_and_guesses(tmp_path):
    with pytest.raises(InputError) as caught:
        load_architecture("Qwen/Qwen3-8b", tmp_path, HERE)
    assert caught.value.position == HERE
    assert "did you mean `Qwen/Qwen3-8B`" in str(caught.value)


# Published files


@pytest.mark.parametrize("file", ACCEPTED)
def test_a_published_file_reads_as_its_catalogue_entry(file):
    model = load_architecture(f"{file}.json", MODELS, HERE)
    assert replace(model, name=ACCEPTED[file]) == load_architecture(ACCEPTED[file], Path(), None)


@pytest.mark.parametrize("file", OTHERS)
def test_a_published_file_of_mixed_layers_reads_as_its_catalogue_entry(file):
    model = load_architecture(f"{file}.json", MODELS, HERE)
    known = load_architecture(OTHERS[file], Path(), None)
    same = {"name": known.name, "left_out": known.left_out, "family": known.family}
    assert replace(model, **same) == known
    assert set(known.left_out) <= set(model.left_out)


def test_an_attention_that_nobody_priced_is_refused_by_name():
    with pytest.raises(InputError) as caught:
        load_architecture("DeepSeek-V4-Flash.json", MODELS, HERE)
    error = caught.value
    assert 'model_type "deepseek_v4", architectures ["DeepseekV4ForCausalLM"]' in error.message
    assert error.position is not None
    assert '"model_type": "deepseek_v4"' in error.position.text
    assert "pipeline.yaml:4:19" in str(error)


def test_what_a_file_has_beyond_the_priced_layers_is_said():
    assert load_architecture("Qwen3.5-35B-A3B.json", MODELS, None).left_out == (
        "the vision tower (`vision_config`)",
        "layers for multi-token prediction (`mtp_num_hidden_layers` 1)",
    )
    assert "BF16 is priced" in load_architecture("gpt-oss-20b.json", MODELS, None).left_out[0]
    assert load_architecture("Qwen3-8B.json", MODELS, None).left_out == ()


# Where a path may lead


def test_a_path_may_be_a_file_its_folder_or_absolute(tmp_path):
    (tmp_path / "model").mkdir()
    by_dot = load(QWEN3, tmp_path / "model")
    for reference in ("model", "model/", "model/config.json", str(tmp_path / "model")):
        assert replace(load_architecture(reference, tmp_path, None), name=by_dot.name) == by_dot


@pytest.mark.parametrize(
    "reference", ["", "nowhere", "nowhere/config.json", "x" * 5000, "a\0b", "~no-such-user-here/x"]
)
def test_a_path_that_leads_nowhere_points_into_the_pipeline(reference, tmp_path):
    with pytest.raises(InputError) as caught:
        load_architecture(reference, tmp_path, HERE)
    assert caught.value.position == HERE


def test_a_folder_without_a_config_says_so(tmp_path):
    with pytest.raises(InputError, match=r"the folder `\.` holds no config\.json"):
        load_architecture(".", tmp_path, HERE)


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="not a regular file"):
        load_architecture(".", tmp_path, HERE)


# Files that are no JSON


def test_a_truncated_file_is_refused_with_its_place(tmp_path):
    text = json.dumps(QWEN3, indent=2)
    text = text[: text.index('"hidden_size"') + 5]
    error = refusal(text, tmp_path)
    line = text.count("\n") + 1
    assert str(error).startswith(f"./config.json:{line}:3: not valid JSON: Unterminated string")
    assert f'{line} |   "hidd\n' in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON: Expecting value"),
        ("[1]", r"a model configuration is a JSON object, got \[1\]"),
        ('{"a": 1,}', "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "thousands of digits"),
        ('{"model_type": "qwen3", "model_type": "llama"}', 'the key "model_type" appears twice'),
        (" " * (MAX_CONFIG_BYTES + 1), "larger than the 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(text, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load(text, tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"model_type": "\xff"}')
    with pytest.raises(InputError, match="not UTF-8: byte 16"):
        load_architecture(".", tmp_path, HERE)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_none_is_refused_where_it_stands(word, tmp_path):
    error = refusal(json.dumps(QWEN3)[:-1] + f',\n"initializer_range": {word}\n}}', tmp_path)
    assert f"{word} is not a number" in error.message
    assert error.position is not None
    assert (error.position.line, error.position.column) == (2, 22)


def test_an_unknown_model_with_infinities_is_still_refused_by_name(tmp_path):
    error = refusal('{"model_type": "zamba2", "time_step_limit": [0.0, Infinity]}', tmp_path)
    assert 'model_type "zamba2"' in error.message


def test_a_state_space_model_may_have_an_infinite_step(tmp_path):
    text = json.dumps({**NEMOTRON, "time_step_limit": [0.0, math.inf]})
    assert "Infinity" in text
    assert load(text, tmp_path).parameters == 31_577_937_344


# Fields


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
@pytest.mark.parametrize("value", [None, "4096", 4096.0, True, -1, 0, 10**30, [4096], {"a": 1}])
def test_a_wrong_size_is_refused_with_key_range_and_value(key, value, tmp_path):
    error = refusal({**QWEN3, key: value}, tmp_path)
    assert f"`{key}`" in error.message
    assert "integer from 1 to" in error.message
    assert value is None or json.dumps(value)[:20] in error.message
    assert error.position is not None
    assert f'"{key}":' in error.position.text


def test_a_missing_size_is_refused(tmp_path):
    facts = {key: value for key, value in QWEN3.items() if key != "hidden_size"}
    assert refusal(facts, tmp_path).message.startswith("`hidden_size` is missing")


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (LLAMA, {"use_sliding_window": True, "sliding_window": 4096}, "`sliding_window` 4096"),
        (
            QWEN3,
            {"use_sliding_window": True, "sliding_window": "wide", "max_window_layers": 1},
            '`sliding_window`.*"wide"',
        ),
        (QWEN3, {"layer_types": ["full_attention"] * 35 + ["warp_attention"]}, '"warp_attention".*layer 35'),
        (GPT_OSS, {"layer_types": ["lightning_attention"] * 24}, '"lightning_attention".*layer 0'),
        (GPT_OSS, {"sliding_window": None}, "`sliding_window`"),
        (NEMOTRON, {"hybrid_override_pattern": "MEMEM*EW"}, r'"W" \(layer 7 in `hybrid_override_pattern`\)'),
        (NEMOTRON, {"hybrid_override_pattern": None}, "`hybrid_override_pattern` is missing"),
        (NEMOTRON, {"num_hidden_layers": 51}, "names 52 layers, but `num_hidden_layers` is 51"),
        (NEMOTRON, {"hybrid_override_pattern": "M" * 52}, "at least one layer must be attention"),
        (DEEPSEEK, {"index_topk": 2048}, "sparse attention.*2048"),
        (DEEPSEEK, {"kv_lora_rank": 0}, "`kv_lora_rank`.*got 0"),
        (DEEPSEEK, {"mlp_layer_types": ["dense"] * 60 + ["hashed"]}, '"hashed"'),
        (DEEPSEEK, {"moe_layer_freq": [0, 1]}, "`moe_layer_freq`"),
        (LLAMA, {"sliding_window": 4096}, "`sliding_window` is 4096"),
        (QWEN3, {"quantization_config": {"quant_method": "fp8"}}, 'quantised weights.*"quant_method"'),
        (QWEN3, {"hidden_act": "gelu"}, 'hidden_act "silu", got "gelu"'),
        (QWEN3, {"hidden_act": None}, 'hidden_act "silu", got null'),
        (QWEN3, {"num_key_value_heads": 5}, "must divide num_attention_heads: 32 / 5"),
        (QWEN3, {"num_key_value_heads": 64}, "must divide num_attention_heads: 32 / 64"),
        (LLAMA, {"num_attention_heads": 24, "num_key_value_heads": 8}, "must divide hidden_size: 4096 / 24"),
        (QWEN3, {"tie_word_embeddings": "yes"}, '`tie_word_embeddings` must be true or false, got "yes"'),
        (QWEN3, {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        (QWEN3, {"layer_types": 7}, "`layer_types` is 7"),
        (QWEN3, {"num_experts": 8}, "has no experts, but `num_experts` is 8"),
        (LLAMA, {"auto_map": {"AutoModel": "evil.Model"}}, "code of its own"),
        (LLAMA, {"text_config": {"hidden_size": 64}}, "nested language model"),
        (MIXTURE, {"shared_expert_intermediate_size": 512}, "shared experts.*512"),
        (MIXTURE, {"num_experts_per_tok": 200}, "200 of 128"),
        (MIXTURE, {"mlp_only_layers": [48]}, r"from 0 to 47, got \[48\]"),
        (MIXTURE, {"mlp_only_layers": "all"}, '`mlp_only_layers`.*"all"'),
        (MIXTURE, {"decoder_sparse_step": 0}, "`decoder_sparse_step`.*got 0"),
        (QWEN3, {"architectures": ["Qwen3ForCausalLM", "Evil"]}, "Evil"),
        (QWEN3, {"architectures": "Qwen3ForCausalLM"}, "cannot be priced"),
        (QWEN3, {"model_type": ["qwen3"]}, r'model_type \["qwen3"\]'),
        (QWEN3, {"model_type": "llama"}, "Qwen3ForCausalLM"),
        (QWEN3, {"rope_scaling": {"rope_type": "yarn", "factor": 0.1}}, "factor of at least 1"),
        (QWEN3, {"rope_scaling": {"rope_type": "yarn", "factor": 10**400}}, "factor of at least 1"),
        (QWEN3, {"rope_scaling": {"rope_type": "warp"}}, "yarn: got"),
        (QWEN3, {"rope_scaling": "yarn"}, "must be null or have"),
    ],
)
def test_what_cannot_be_priced_is_refused_with_the_rule_and_the_values(base, change, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        load({**base, **change}, tmp_path)
    position = caught.value.position
    assert position is not None
    assert position.file == "./config.json"
    assert "pipeline.yaml:4:19" in (caught.value.hint or "")


def test_quantisation_stated_beside_the_config_is_refused(tmp_path):
    (tmp_path / "hf_quant_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds hf_quant_config\.json"):
        load(QWEN3, tmp_path)


def test_a_window_that_is_switched_off_is_fine(tmp_path):
    assert load({**QWEN3, "sliding_window": 4096}, tmp_path) == load(QWEN3, tmp_path)


# Defaults and what keys mean


def test_absent_keys_take_the_defaults_of_transformers(tmp_path):
    def without(facts: dict[str, object], *keys: str) -> Architecture:
        return load({key: value for key, value in facts.items() if key not in keys}, tmp_path)

    llama = without(LLAMA, "num_key_value_heads", "head_dim", "tie_word_embeddings", "attention_bias", "architectures")
    assert (llama.kv_heads, llama.head_dim, llama.tied_embeddings, llama.qkv_bias) == (32, 128, False, False)
    assert without({**QWEN3, "hidden_size": 2560}, "head_dim").head_dim == 128
    assert without(MIXTURE, "num_key_value_heads", "head_dim").kv_heads == 4
    assert without(MIXTURE, "head_dim").head_dim == 2048 // 32


def test_biases_lie_where_each_family_has_them(tmp_path):
    llama = load({**LLAMA, "attention_bias": True, "mlp_bias": True}, tmp_path)
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True, True, True)
    plain = load(LLAMA, tmp_path)
    per_layer = 32 * 128 + 2 * 8 * 128 + 4096 + 2 * 14336 + 4096
    assert llama.parameters - plain.parameters == 32 * per_layer
    qwen = load_architecture("Qwen/Qwen2.5-7B", Path(), None)
    assert (qwen.qkv_bias, qwen.output_bias, qwen.qk_norm) == (True, False, False)


@pytest.mark.parametrize(
    ("change", "dense"),
    [
        ({"decoder_sparse_step": 2}, 24),
        ({"decoder_sparse_step": 3}, 32),
        ({"mlp_only_layers": [0, 1]}, 2),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [0, 1]}, 25),
        ({"num_experts": 0}, 48),
    ],
)
def test_dense_layers_of_a_mixture(change, dense, tmp_path):
    model = load({**MIXTURE, **change}, tmp_path)
    assert model.dense_layers == dense
    assert model.intermediate == 6144
    assert (model.experts > 0) == (dense < 48)


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "linear", "factor": 2}, 81920),
        ({"rope_type": "llama3", "factor": 8.0}, 40960),
        ({"rope_theta": 1000000}, 40960),
    ],
)
def test_a_rope_scaling_stretches_the_positions(rope, positions, tmp_path):
    assert load({**QWEN3, "rope_scaling": rope}, tmp_path).max_positions == positions
    assert load({**QWEN3, "rope_scaling": None, "rope_parameters": rope}, tmp_path).max_positions == positions


def test_a_reward_model_is_read_as_its_trunk(tmp_path):
    model = load({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, tmp_path)
    assert model.parameters_with_head("scalar") == 8_030_261_248 - 128256 * 4096 + 4096


# Nested text models


def test_an_error_in_a_nested_model_points_into_it(tmp_path):
    text = {**VISION["text_config"], "num_key_value_heads": 5}
    error = refusal({**VISION, "hidden_size": 1, "text_config": text}, tmp_path)
    assert "32 / 5" in error.message
    assert error.position is not None
    assert error.position.text == '    "num_key_value_heads": 5,'


def test_a_nested_model_of_another_family_is_refused_by_its_own_name(tmp_path):
    error = refusal({**VISION, "text_config": {**VISION["text_config"], "model_type": "rwkv7"}}, tmp_path)
    assert 'model_type "rwkv7" in `text_config`' in error.message


@pytest.mark.parametrize("tied", [True, False])
def test_the_whole_models_word_on_tied_tables_counts(tied, tmp_path):
    model = load({**VISION, "tie_word_embeddings": tied}, tmp_path)
    assert model.tied_embeddings is tied


def test_a_file_from_before_text_config_reads_the_same(tmp_path):
    vision = {"depth": 32, "hidden_size": 1280}
    sizes = {key: QWEN3[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")}
    text = {**sizes, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768}
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    flat = {"model_type": "qwen2_5_vl", "tie_word_embeddings": False, **text, **rope, "vision_config": vision}
    nested = {"model_type": "qwen2_5_vl", "text_config": {**text, **rope}, "vision_config": vision}
    assert load(flat, tmp_path) == load(nested, tmp_path)
    assert load(flat, tmp_path).left_out == ("the vision tower (`vision_config`)",)


def test_sizes_that_a_nested_gemma_leaves_out_are_its_classes_defaults(tmp_path):
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    facts = {"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024}, "vision_config": {"depth": 27}}
    model = load(facts, tmp_path)
    assert model.parameters == 3_880_263_168
    assert model.tied_embeddings
    assert {(mixer.layers, mixer.reach) for mixer in model.score_mixers} == {(5, 0), (29, 1024)}


# Layers of several kinds


def test_windows_lie_where_each_family_has_them(tmp_path):
    def reaches(facts: dict[str, object]) -> set[tuple[int, int]]:
        return {(mixer.layers, mixer.reach) for mixer in load(facts, tmp_path).score_mixers}

    late = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 30}
    assert reaches({**QWEN3, **late}) == {(30, 0), (6, 4096)}
    assert reaches(GPT_OSS) == {(12, 0), (12, 128)}
    assert reaches({key: value for key, value in GPT_OSS.items() if key != "layer_types"}) == {(12, 0), (12, 128)}
    mistral = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "rope_scaling": None}
    assert reaches(mistral) == {(32, 4096)}
    assert reaches({**mistral, "sliding_window": None}) == {(32, 0)}


@pytest.mark.parametrize(
    ("change", "dense"),
    [({}, 3), ({"first_k_dense_replace": 0}, 0), ({"moe_layer_freq": 2}, 32), ({"n_routed_experts": None}, 61)],
)
def test_dense_layers_of_deepseek(change, dense, tmp_path):
    model = load({**DEEPSEEK, **change}, tmp_path)
    assert model.dense_layers == dense
    assert model.shared_intermediate == (2048 if dense < 61 else 0)


def test_a_null_query_rank_projects_queries_directly(tmp_path):
    low, full = load(DEEPSEEK, tmp_path), load({**DEEPSEEK, "q_lora_rank": None}, tmp_path)
    heads, width = 128, 128 + 64
    difference = 7168 * heads * width - (7168 * 1536 + 1536 + 1536 * heads * width)
    assert full.parameters - low.parameters == 61 * difference


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


BASES = (LLAMA, QWEN3, MIXTURE, DEEPSEEK, GPT_OSS, NEMOTRON, DELTA["text_config"])
KEYS = sorted({key for base in BASES for key in base} | {"layer_types", "mlp_layer_types", "layers_block_type"})


@given(st.dictionaries(st.sampled_from(KEYS), anything))
@settings(max_examples=150, deadline=None)
def test_no_value_of_any_key_ends_in_a_traceback(change):
    for base in BASES:
        facts = {**base, **change}
        try:
            model = read_architecture(ModelConfig("config.json", facts, json.dumps(facts)), "fuzzed")
        except InputError:
            continue
        assert model.parameters > 0


@given(st.dictionaries(st.sampled_from(sorted({*VISION, *DELTA})), anything))
@settings(max_examples=60, deadline=None)
def test_no_value_around_a_nested_model_ends_in_a_traceback(change):
    for base in (VISION, DELTA):
        facts = {**base, **change}
        try:
            read_architecture(ModelConfig("config.json", facts, json.dumps(facts)), "fuzzed")
        except InputError:
            continue


def test_no_prefix_of_a_file_ends_in_a_traceback(tmp_path):
    text = json.dumps(MIXTURE, indent=1)
    for end in range(len(text)):
        refusal(text[:end], tmp_path)


def test_a_state_space_model_without_a_head_size_takes_it_from_the_channels(tmp_path):
    config = {"model_type": "granitemoehybrid", "hidden_size": 1024, "num_hidden_layers": 2, "vocab_size": 32000}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 2048, "mamba_n_heads": 32}
    config["max_position_embeddings"] = 4096
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"layer_types": ["mamba", "attention"]}), encoding="utf-8")
    stated = tmp_path / "stated.json"
    stated.write_text(
        json.dumps(config | {"layer_types": ["mamba", "attention"], "mamba_d_head": 64}), encoding="utf-8"
    )
    read, same = (load_architecture(str(file), tmp_path, HERE) for file in (path, stated))
    assert read.parameters == same.parameters
