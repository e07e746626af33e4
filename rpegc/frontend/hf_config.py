"""Hugging Face `config.json` to `Architecture`, for the families that can be priced; the rest is refused by name.

Defaults for absent keys are those of the family's configuration class in Transformers 4.57.1
(`transformers/models/<family>/configuration_<family>.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rpegc.architecture import Architecture, ArchitectureError
from rpegc.catalog import catalogue_facts, catalogue_models
from rpegc.errors import InputError, SourcePosition, guess
from rpegc.frontend.config_json import ModelConfig, read_config, show


@dataclass(frozen=True, slots=True)
class Family:
    """What a `model_type` means beyond its keys.

    `class_prefix` starts the names in `architectures`. `kv_heads` and `head_dim` are defaults of absent keys (None:
    as many as heads; hidden / heads). `fixed_qkv_bias`: query, key and value always have a bias and the output never.
    """

    class_prefix: str
    kv_heads: int | None = None
    head_dim: int | None = None
    qk_norm: bool = False
    fixed_qkv_bias: bool = False
    mlp_bias_key: bool = False
    mixture: bool = False


FAMILIES = {
    "llama": Family("Llama", mlp_bias_key=True),
    "qwen2": Family("Qwen2", kv_heads=32, fixed_qkv_bias=True),
    "qwen3": Family("Qwen3", kv_heads=32, head_dim=128, qk_norm=True),
    "qwen3_moe": Family("Qwen3Moe", kv_heads=4, qk_norm=True, mixture=True),
}

_CLASS_SUFFIXES = ("ForCausalLM", "ForSequenceClassification", "ForTokenClassification", "Model")

# What makes a layer something else than the families above, whatever `model_type` says.
_FOREIGN = {
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
    "num_nextn_predict_layers": "multi-token prediction layers",
    "mtp_num_hidden_layers": "multi-token prediction layers",
    "attn_output_gate": "gated attention",
    "full_attention_interval": "layers of linear attention",
    "linear_num_key_heads": "layers of linear attention",
    "hybrid_override_pattern": "state-space layers",
    "ssm_state_size": "state-space layers",
    "attention_chunk_size": "chunked attention",
    "index_topk": "sparse attention",
}

# Smallest and largest value that is read; the largest leaves room of ten or more above any published model.
_BOUNDS = {
    "hidden_size": (1, 1 << 18),
    "intermediate_size": (1, 1 << 20),
    "moe_intermediate_size": (1, 1 << 20),
    "num_hidden_layers": (1, 1 << 12),
    "num_attention_heads": (1, 1 << 13),
    "num_key_value_heads": (1, 1 << 13),
    "head_dim": (1, 1 << 13),
    "vocab_size": (1, 1 << 24),
    "max_position_embeddings": (1, 1 << 30),
    "num_experts": (0, 1 << 16),
    "num_experts_per_tok": (1, 1 << 16),
    "decoder_sparse_step": (1, 1 << 12),
}

# RoPE variants whose `factor` multiplies the positions; the others state the extended length already.
_ROPE_STRETCHED = ("linear", "dynamic", "yarn")
_ROPE_STATED = ("default", "llama3", "longrope")

# The key to point at when a rule of `Architecture` fails.
_KEY_OF_FIELD = {
    "heads": "num_attention_heads",
    "experts_per_token": "num_experts_per_tok",
    "expert_intermediate": "moe_intermediate_size",
    "intermediate": "intermediate_size",
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
    """Turn the facts of a `config.json` into an Architecture, or raise InputError naming the rule and the values."""
    model_type = _model_type(config)
    family = FAMILIES[model_type]
    if config.not_finite:
        raise config.error(f"not valid JSON: {config.not_finite} is not a number that JSON allows")
    _refuse_foreign(config, model_type, family)
    layers = _integer(config, "num_hidden_layers")
    heads = _integer(config, "num_attention_heads")
    hidden = _integer(config, "hidden_size")
    dense_layers = _dense_layers(config, layers) if family.mixture else layers
    attention_bias = _boolean(config, "attention_bias") and not family.fixed_qkv_bias
    try:
        return Architecture(
            name=name,
            family=model_type,
            hidden=hidden,
            layers=layers,
            vocabulary=_integer(config, "vocab_size"),
            heads=heads,
            kv_heads=_kv_heads(config, family, heads),
            head_dim=_head_dim(config, family, hidden, heads),
            intermediate=_integer(config, "intermediate_size") if dense_layers else 0,
            mlp_matrices=3,
            experts=_integer(config, "num_experts") if dense_layers < layers else 0,
            experts_per_token=_integer(config, "num_experts_per_tok") if dense_layers < layers else 0,
            expert_intermediate=_integer(config, "moe_intermediate_size") if dense_layers < layers else 0,
            dense_layers=dense_layers,
            tied_embeddings=_boolean(config, "tie_word_embeddings"),
            qk_norm=family.qk_norm,
            qkv_bias=family.fixed_qkv_bias or attention_bias,
            output_bias=attention_bias,
            mlp_bias=family.mlp_bias_key and _boolean(config, "mlp_bias"),
            max_positions=_max_positions(config),
        )
    except ArchitectureError as error:
        raise config.error(error.message, _KEY_OF_FIELD.get(error.field)) from None


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


def _model_type(config: ModelConfig) -> str:
    """Return a known `model_type`, or refuse it together with `architectures`."""
    model_type = config.facts.get("model_type")
    classes = config.facts.get("architectures")
    described = f"model_type {show(model_type)}, architectures {show(classes)}"
    supported = f"priced are {', '.join(sorted(FAMILIES))}"
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        nested = "; a language model nested in `text_config` is not read" if "text_config" in config.facts else ""
        message = f"this architecture cannot be priced: {described}{nested}"
        raise config.error(message, "model_type", supported)
    allowed = [FAMILIES[model_type].class_prefix + suffix for suffix in _CLASS_SUFFIXES]
    if classes is not None and not (isinstance(classes, list) and all(name in allowed for name in classes)):
        message = f"this architecture cannot be priced: {described}"
        raise config.error(message, "architectures", f"{show(model_type)} goes with {', '.join(allowed)}")
    return model_type


def _refuse_foreign(config: ModelConfig, model_type: str, family: Family) -> None:
    """Refuse what would make the known layers compute something else."""
    for key, meaning in _FOREIGN.items():
        if config.facts.get(key):
            message = f"this {model_type} model has {meaning}, which cannot be priced: `{key}` is {_shape(config, key)}"
            raise config.error(message, key)
    if not family.mixture and config.facts.get("num_experts"):
        message = f"a {model_type} model has no experts, but `num_experts` is {_shape(config, 'num_experts')}"
        raise config.error(message, "num_experts")
    if _boolean(config, "use_sliding_window"):
        window = show(config.facts.get("sliding_window"))
        message = (
            f"sliding-window attention cannot be priced: `use_sliding_window` is true, `sliding_window` is {window}"
        )
        raise config.error(message, "use_sliding_window")
    # Llama has no such switch: Transformers ignores a bare number there, vLLM honours it.
    if model_type == "llama" and config.facts.get("sliding_window") and "use_sliding_window" not in config.facts:
        message = f"sliding-window attention cannot be priced: `sliding_window` is {_shape(config, 'sliding_window')}"
        raise config.error(message, "sliding_window", "state `use_sliding_window: false` if it is not used")
    kinds = config.facts.get("layer_types")
    if kinds is not None and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
        message = f'every layer must be "full_attention", but `layer_types` is {show(kinds)}'
        raise config.error(message, "layer_types")
    activation = config.facts.get("hidden_act", "silu")
    if activation != "silu":
        message = f'the MLP of {model_type} is priced with hidden_act "silu", got {show(activation)}'
        raise config.error(message, "hidden_act")


def _shape(config: ModelConfig, key: str) -> str:
    """Show a value; an object only by its keys, which are enough to recognise it."""
    value = config.facts[key]
    return f"an object with {show(sorted(value))}" if isinstance(value, dict) else show(value)


def _kv_heads(config: ModelConfig, family: Family, heads: int) -> int:
    default = family.kv_heads if family.kv_heads and "num_key_value_heads" not in config.facts else heads
    kv_heads = _integer(config, "num_key_value_heads", default)
    if heads % kv_heads:
        message = f"num_key_value_heads must divide num_attention_heads: {heads} / {kv_heads}"
        raise config.error(message, "num_key_value_heads")
    return kv_heads


def _head_dim(config: ModelConfig, family: Family, hidden: int, heads: int) -> int:
    if config.facts.get("head_dim") is not None:
        return _integer(config, "head_dim")
    if family.head_dim and "head_dim" not in config.facts:
        return family.head_dim
    if hidden % heads:
        message = f"without head_dim, num_attention_heads must divide hidden_size: {hidden} / {heads}"
        raise config.error(message, "num_attention_heads")
    return hidden // heads


def _dense_layers(config: ModelConfig, layers: int) -> int:
    """Count the layers with a dense MLP: those of `mlp_only_layers` and those that `decoder_sparse_step` skips."""
    only = config.facts.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(type(layer) is int and 0 <= layer < layers for layer in only):
        message = f"`mlp_only_layers` must be a list of layers from 0 to {layers - 1}, got {show(only)}"
        raise config.error(message, "mlp_only_layers")
    if _integer(config, "num_experts") == 0:
        return layers
    step = _integer(config, "decoder_sparse_step", 1)
    return sum(1 for layer in range(layers) if layer in only or (layer + 1) % step)


def _max_positions(config: ModelConfig) -> int:
    """Return the longest sequence, counting a RoPE scaling that stretches it."""
    positions = _integer(config, "max_position_embeddings")
    key = "rope_parameters" if config.facts.get("rope_parameters") else "rope_scaling"
    rope = config.facts.get(key)
    if rope is None:
        return positions
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else None
    if not isinstance(rope, dict) or kind not in _ROPE_STRETCHED + _ROPE_STATED:
        allowed = ", ".join(sorted(_ROPE_STRETCHED + _ROPE_STATED))
        raise config.error(f"`{key}` must be null or have a rope_type among {allowed}: got {show(rope)}", key)
    if kind in _ROPE_STATED:
        return positions
    original = rope.get("original_max_position_embeddings") if kind == "yarn" else None
    factor = _number(rope.get("factor"))
    stretched = factor * _number(original or positions)
    if not (factor >= 1 and 1 <= stretched <= _BOUNDS["max_position_embeddings"][1]):
        message = f"`{key}` must multiply the positions by a factor of at least 1: got {show(rope)}"
        raise config.error(message, key)
    return max(positions, int(stretched))


def _number(value: object) -> float:
    """Return an untrusted number as a float; nan, which no range contains, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _integer(config: ModelConfig, key: str, default: int | None = None) -> int:
    low, high = _BOUNDS[key]
    value = config.facts.get(key)
    if value is None and default is not None:
        value = default
    if value is None:
        raise config.error(f"`{key}` is missing: it must be an integer from {low} to {high}", key)
    if type(value) is not int or not low <= value <= high:
        raise config.error(f"`{key}` must be an integer from {low} to {high}, got {show(value)}", key)
    return value


def _boolean(config: ModelConfig, key: str) -> bool:
    value = config.facts.get(key)
    if value is not None and not isinstance(value, bool):
        raise config.error(f"`{key}` must be true or false, got {show(value)}", key)
    return value is True
