"""Hugging Face `config.json` to `Architecture`, for the families that can be priced; the rest is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rpegc.architecture import Architecture, ArchitectureError, Attention, Mixer
from rpegc.catalog import catalogue_facts, catalogue_models
from rpegc.errors import InputError, SourcePosition, guess
from rpegc.frontend import config_experts
from rpegc.frontend.config_json import ModelConfig, read_config, show
from rpegc.frontend.config_mixers import attention, bias
from rpegc.frontend.config_values import boolean, integer, max_positions
from rpegc.frontend.families import FAMILIES, WRAPPERS
from rpegc.frontend.family import Family, Heads, heads_of

_CLASS_SUFFIXES = (
    *("ForCausalLM", "ForSequenceClassification", "ForTokenClassification", "ForConditionalGeneration", "Model"),
    *("TextModel", "LMHeadModel", "ForQuestionAnswering"),
)

# What makes a layer something else than plain attention and a dense MLP, whatever `model_type` says. A family that
# understands a key has it in `Family.reads`.
FOREIGN = {
    "text_config": "a nested language model",
    "vision_config": "a vision tower",
    "audio_config": "an audio tower",
    "quantization_config": "quantised weights",
    "compression_config": "compressed weights",
    "auto_map": "code of its own",
    "kv_lora_rank": "multi-head latent attention",
    "q_lora_rank": "multi-head latent attention",
    "n_routed_experts": "experts of another family",
    "num_local_experts": "experts of another family",
    "n_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "shared experts",
    "zero_expert_num": "experts that do nothing",
    "moe_latent_size": "experts on a latent",
    "num_nextn_predict_layers": "multi-token prediction layers",
    "mtp_num_hidden_layers": "multi-token prediction layers",
    "attn_output_gate": "gated attention",
    "full_attention_interval": "layers of linear attention",
    "linear_num_key_heads": "layers of linear attention",
    "linear_attn_config": "layers of linear attention",
    "hybrid_override_pattern": "state-space layers",
    "ssm_state_size": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "mamba_n_heads": "state-space layers",
    "mamba_d_ssm": "state-space layers beside attention",
    "conv_L_cache": "layers of short convolution",
    "attention_chunk_size": "chunked attention",
    "index_topk": "sparse attention",
    "sparse_attention_config": "sparse attention",
    "compress_ratios": "compressed attention",
    "hc_mult": "hyper-connections",
    "num_kv_shared_layers": "layers that share keys and values",
    "hidden_size_per_layer_input": "an embedding for each layer",
    "altup_num_inputs": "alternating updates",
    "use_double_wide_mlp": "MLPs of double width",
    "cross_attention_layers": "cross-attention",
    "block_configs": "blocks of different shape",
    "per_layer_config": "layers of different shape",
    "num_loops": "layers that run several times",
    "is_encoder_decoder": "an encoder",
}

# The key to point at when a rule of `Architecture` fails.
_KEY_OF_FIELD = {
    "heads": "num_attention_heads",
    "experts_per_token": "num_experts_per_tok",
    "expert_intermediate": "moe_intermediate_size",
    "intermediate": "intermediate_size",
    "own_mixers": "layer_types",
}


def load_architecture(reference: str, base_folder: Path, position: SourcePosition | None) -> Architecture:
    """Read the model that a pipeline names: a catalogue name, else a path to a `config.json` or to its folder.

    Relative paths start at `base_folder`; `./Qwen/Qwen3-8B` is always a path. Nothing is downloaded and no code runs.
    Raises InputError where the reference or the file is wrong, or names an architecture that cannot be priced.
    """
    if reference in catalogue_models():
        return read_architecture(ModelConfig(reference, catalogue_facts(reference), read_for=position), reference)
    path, shown = _locate(reference, base_folder, position)
    return read_architecture(read_config(path, shown, position), reference)


def read_architecture(config: ModelConfig, name: str) -> Architecture:
    """Turn the facts of a `config.json` into an Architecture, or raise InputError naming the rule and the values.

    Of a model with a nested `text_config` only that is read; `left_out` says what else the file describes.
    """
    model_type = config.facts.get("model_type")
    if isinstance(model_type, str) and model_type in WRAPPERS:
        return _nested(config, model_type, name)
    return _text_model(config, _model_type(config), name, ())


def _nested(config: ModelConfig, wrapper: str, name: str) -> Architecture:
    """Read the language model inside a model of text and images."""
    prefix, default_type = WRAPPERS[wrapper]
    _check_classes(config, wrapper, (prefix,))
    _refuse_numbers_that_are_none(config)
    if config.facts.get("text_config") is not None:
        text = config.nested("text_config", {"model_type": default_type})
    else:  # files from before `text_config` state the text model's sizes beside the rest
        text = config.with_facts({"model_type": default_type, "vision_config": None, "audio_config": None})
    if "tie_word_embeddings" in config.facts:  # the whole model's word counts, as in Transformers
        text = text.with_facts({"tie_word_embeddings": config.facts["tie_word_embeddings"]})
    left_out = tuple(
        f"{what} (`{key}`)"
        for key, what in (("vision_config", "the vision tower"), ("audio_config", "the audio tower"))
        if config.facts.get(key)
    )
    model_type = text.facts.get("model_type")
    known = WRAPPERS[str(model_type)][1] if str(model_type) in WRAPPERS else model_type
    if not isinstance(known, str) or known not in FAMILIES:
        message = f"the nested language model cannot be priced: model_type {show(model_type)} in `text_config`"
        raise text.error(message, "model_type", _supported())
    return _text_model(text, known, name, left_out)


def _text_model(config: ModelConfig, model_type: str, name: str, left_out: tuple[str, ...]) -> Architecture:
    family = FAMILIES[model_type]
    if "time_step_limit" not in family.reads:  # Python writes Infinity there
        _refuse_numbers_that_are_none(config)
    _refuse_foreign(config, model_type, family)
    layers = family.layers(config) if family.layers else family.integer(config, "num_hidden_layers")
    heads = heads_of(config, family, layers)
    try:
        one = attention(config, family, heads)
        return Architecture(
            name=name,
            family=model_type,
            hidden=heads.hidden,
            layers=layers,
            vocabulary=family.integer(config, "vocab_size"),
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            mlp_matrices=family.mlp_matrices,
            tied_embeddings=boolean(config, "tie_word_embeddings", family.tied),
            qk_norm=one.norm_elements > 0,
            qkv_bias=one.qkv_bias,
            output_bias=one.output_bias,
            mlp_bias=bias(config, family, family.mlp_bias),
            max_positions=max_positions(config, family.defaults.get("max_position_embeddings"), family.stretched),
            own_mixers=_mixers(config, family, heads, one),
            layer_norms=family.norms,
            norm_bias=family.norm_bias,
            active_tables=family.active_tables,
            other_parameters=family.others(config, heads) if family.others else 0,
            left_out=(*left_out, *_left_out(config)),
            **(family.mixture or config_experts.dense)(config, family, layers),
        )
    except ArchitectureError as error:
        raise config.error(error.message, _KEY_OF_FIELD.get(error.field)) from None


def _mixers(config: ModelConfig, family: Family, heads: Heads, one: Attention) -> tuple[Mixer, ...]:
    """Return what mixes tokens; nothing where every layer is the plain attention that the other fields describe."""
    if family.mixers is None:
        built: tuple[Mixer, ...] = (_in_all(one, heads.layers),)
    else:
        built = family.mixers(config, family, heads)
    plain = _in_all(one, heads.layers)
    simple = not (one.gated or one.sinks) and one.norm_elements in (0, 2 * heads.head_dim)
    return () if simple and built == (plain,) else built


def _in_all(one: Attention, layers: int) -> Attention:
    return replace(one, layers=layers)


def _left_out(config: ModelConfig) -> tuple[str, ...]:
    """Say what the file describes beside the layers that are priced."""
    found = []
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        if config.facts.get(key):
            found.append(f"layers for multi-token prediction (`{key}` {integer(config, key)})")
    if config.facts.get("quantization_config"):
        found.append("the quantisation of the published weights (`quantization_config`): BF16 is priced")
    return tuple(found)


def _locate(reference: str, base_folder: Path, position: SourcePosition | None) -> tuple[Path, str]:
    """Find the file that a path names, and how to print it."""
    try:
        path = base_folder / Path(reference).expanduser()
        if reference and path.is_dir():
            if not (path / "config.json").exists():
                raise InputError(f"the folder `{reference}` holds no config.json", position)
            # NVIDIA ModelOpt states quantisation beside a config.json that looks like the original's.
            if (path / "hf_quant_config.json").exists():
                message = f"quantised weights cannot be priced: `{reference}` holds hf_quant_config.json"
                raise InputError(message, position)
            return path / "config.json", f"{reference.rstrip('/')}/config.json"
        if reference and path.exists():
            return path, reference
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL byte, no such home folder
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{show(reference)} cannot be a path: {reason}", position) from None
    raise InputError(
        f"{show(reference)} is neither a model of the catalogue nor a path to a config.json or its folder",
        position,
        guess(reference, catalogue_models()),
    )


def _supported() -> str:
    return f"priced are {', '.join(sorted({*FAMILIES, *WRAPPERS}))}"


def _model_type(config: ModelConfig) -> str:
    """Return a known `model_type`, or refuse it together with `architectures`."""
    stated = config.facts.get("model_type")
    if not isinstance(stated, str) or stated not in FAMILIES:
        described = f"model_type {show(stated)}, architectures {show(config.facts.get('architectures'))}"
        nested = "; a language model nested in `text_config` is not read" if "text_config" in config.facts else ""
        message = f"this architecture cannot be priced: {described}{nested}"
        raise config.error(message, "model_type", _supported())
    _check_classes(config, stated, FAMILIES[stated].classes)
    return stated


def _check_classes(config: ModelConfig, model_type: str, prefixes: tuple[str, ...]) -> None:
    """Refuse `architectures` that do not belong to the `model_type`: code that nothing here describes."""
    classes = config.facts.get("architectures")
    allowed = [prefix + suffix for prefix in prefixes for suffix in _CLASS_SUFFIXES]
    if classes is not None and not (isinstance(classes, list) and all(name in allowed for name in classes)):
        message = f"this architecture cannot be priced: model_type {show(model_type)}, architectures {show(classes)}"
        raise config.error(message, "architectures", f"{show(model_type)} goes with {', '.join(allowed)}")


def _refuse_numbers_that_are_none(config: ModelConfig) -> None:
    if config.not_finite:
        raise config.error(f"not valid JSON: {config.not_finite} is not a number that JSON allows")


def _refuse_foreign(config: ModelConfig, model_type: str, family: Family) -> None:
    """Refuse what would make the known layers compute something else."""
    facts = {**_foreign_defaults(family), **config.facts}
    for key, meaning in FOREIGN.items():
        if facts.get(key) and key not in family.reads:
            shown = _shape(config, key) if key in config.facts else f"{facts[key]} where the file has none"
            message = f"this {model_type} model has {meaning}, which cannot be priced: `{key}` is {shown}"
            raise config.error(message, key)
    if family.mixture is None and config.facts.get("num_experts"):
        message = f"a {model_type} model has no experts, but `num_experts` is {_shape(config, 'num_experts')}"
        raise config.error(message, "num_experts")
    # Llama has no such switch: Transformers ignores a bare number there, vLLM honours it.
    windows = "sliding_window" in family.reads or "use_sliding_window" in config.facts
    if config.facts.get("sliding_window") and not windows:
        message = f"a window of {model_type} cannot be priced: `sliding_window` is {_shape(config, 'sliding_window')}"
        raise config.error(message, "sliding_window", "state `use_sliding_window: false` if it is not used")
    if boolean(config, "use_sliding_window") and "sliding_window" not in family.reads:
        window = show(config.facts.get("sliding_window"))
        message = f"a window of {model_type} cannot be priced: `use_sliding_window` is true, `sliding_window` {window}"
        raise config.error(message, "use_sliding_window")
    if family.mixers is None:
        kinds = config.facts.get("layer_types")
        if kinds is not None and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
            message = f'every layer of {model_type} must be "full_attention", but `layer_types` is {show(kinds)}'
            raise config.error(message, "layer_types")
    for key in family.activation_keys:
        activation = config.facts.get(key, family.activations[0])
        if activation is None and key != family.activation_keys[-1]:
            continue
        if activation not in family.activations:
            known = " or ".join(show(name) for name in family.activations)
            message = f"the MLP of {model_type} is priced with {key} {known}, got {show(activation)}"
            raise config.error(message, key)


def _foreign_defaults(family: Family) -> Mapping[str, Any]:
    return {key: value for key, value in family.defaults.items() if key in FOREIGN and key not in family.reads}


def _shape(config: ModelConfig, key: str) -> str:
    """Show a value; an object only by its keys, which are enough to recognise it."""
    value = config.facts[key]
    return f"an object with {show(sorted(value))}" if isinstance(value, dict) else show(value)
