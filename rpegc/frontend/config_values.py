"""Values of a `config.json`: read with their bounds, or refused with key, range and value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rpegc.frontend.config_json import ModelConfig, show

# Smallest and largest value that is read; the largest leaves room of ten or more above any published model.
_WIDTH = (1, 1 << 18)
_CHANNELS = (1, 1 << 20)
_LAYERS = (1, 1 << 12)
_HEADS = (1, 1 << 13)
_EXPERTS = (0, 1 << 16)
_BOUNDS = {
    "hidden_size": _WIDTH,
    "num_hidden_layers": _LAYERS,
    "vocab_size": (1, 1 << 24),
    "max_position_embeddings": (1, 1 << 30),
    **dict.fromkeys(
        (
            "intermediate_size",
            "intermediate_size_mlp",
            "moe_intermediate_size",
            "ffn_hidden_size",
        ),
        _CHANNELS,
    ),
    **dict.fromkeys(
        (
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "shared_intermediate_size",
            "moe_latent_size",
        ),
        (0, 1 << 20),
    ),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "num_key_value_heads",
            "num_global_key_value_heads",
            "head_dim",
            "global_head_dim",
            "v_head_dim",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "mamba_num_heads",
            "mamba_n_heads",
            "mamba_head_dim",
            "mamba_d_head",
            "mamba_n_groups",
            "n_groups",
            "ssm_state_size",
            "mamba_d_state",
        ),
        _HEADS,
    ),
    **dict.fromkeys(("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv"), (1, 1 << 8)),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), (1, 1 << 16)),
    "mamba_expand": (1, 1 << 8),
    **dict.fromkeys(("kv_lora_rank",), (1, 1 << 16)),
    **dict.fromkeys(("q_lora_rank",), (0, 1 << 16)),
    **dict.fromkeys(
        (
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
            "moe_num_experts",
            "n_shared_experts",
            "num_shared_experts",
            "moe_num_shared_experts",
            "first_k_dense_replace",
            "num_nextn_predict_layers",
            "mtp_num_hidden_layers",
        ),
        _EXPERTS,
    ),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "top_k_experts"), (1, 1 << 16)),
    **dict.fromkeys(
        (
            "decoder_sparse_step",
            "moe_layer_freq",
            "interleave_moe_layer_step",
            "sliding_window_pattern",
            "full_attention_interval",
            "no_rope_layer_interval",
            "moe_layer_interval",
        ),
        _LAYERS,
    ),
    **dict.fromkeys(("max_window_layers", "moe_layer_start_index"), (0, 1 << 16)),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), (1, 1 << 30)),
}


def integer(config: ModelConfig, key: str, default: int | None = None) -> int:
    """Return an integer; `default` where the key is absent or null."""
    low, high = _BOUNDS[key]
    value = config.facts.get(key)
    if value is None and default is not None:
        value = default
    if value is None:
        raise config.error(f"`{key}` is missing: it must be an integer from {low} to {high}", key)
    if type(value) is not int or not low <= value <= high:
        raise config.error(f"`{key}` must be an integer from {low} to {high}, got {show(value)}", key)
    return value


def first_key(config: ModelConfig, keys: Sequence[str]) -> str:
    """Return the first of several names of one fact that the file has, else the first name."""
    return next((key for key in keys if config.facts.get(key) is not None), keys[0])


def boolean(config: ModelConfig, key: str, default: bool = False) -> bool:
    """Return a truth value; `default` where the key is absent or null."""
    value = config.facts.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise config.error(f"`{key}` must be true or false, got {show(value)}", key)
    return value


def number(value: object) -> float:
    """Return an untrusted number as a float; nan, which no range contains, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def max_positions(config: ModelConfig, default: int | None, stretched: bool) -> int:
    """Return the longest sequence, counting a RoPE scaling that stretches it where the family's does (`stretched`)."""
    positions = integer(config, "max_position_embeddings", default)
    key = "rope_parameters" if config.facts.get("rope_parameters") else "rope_scaling"
    rope = config.facts.get(key)
    if rope is None:
        return positions
    if isinstance(rope, dict) and rope and all(isinstance(value, dict) for value in rope.values()):
        return positions  # one set for each type of layer (Gemma): they state the extended length
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else None
    if not isinstance(rope, dict) or kind not in _ROPE_STRETCHED + _ROPE_STATED:
        allowed = ", ".join(sorted(_ROPE_STRETCHED + _ROPE_STATED))
        raise config.error(f"`{key}` must be null or have a rope_type among {allowed}: got {show(rope)}", key)
    if kind in _ROPE_STATED or not stretched:
        return positions
    original = rope.get("original_max_position_embeddings") if kind == "yarn" else None
    factor = number(rope.get("factor"))
    longest = factor * number(original or positions)
    if not (factor >= 1 and 1 <= longest <= _BOUNDS["max_position_embeddings"][1]):
        message = f"`{key}` must multiply the positions by a factor of at least 1: got {show(rope)}"
        raise config.error(message, key)
    return max(positions, int(longest))


# RoPE variants whose `factor` multiplies the positions; the others state the extended length already.
_ROPE_STRETCHED = ("linear", "dynamic", "yarn")
_ROPE_STATED = ("default", "llama3", "longrope", "mrope", "proportional", "su")
