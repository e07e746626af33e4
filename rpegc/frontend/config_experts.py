"""The feed-forward layers of a `config.json`: which are dense, which are mixtures, and of what experts.

Each function returns the fields of `Architecture` that say so.
"""

from __future__ import annotations

from typing import Any

from rpegc.frontend.config_json import ModelConfig, show
from rpegc.frontend.config_mixers import nemotron_pattern
from rpegc.frontend.config_values import boolean, first_key, integer
from rpegc.frontend.family import Family, listed


def dense(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """Return a dense MLP in every layer."""
    return {"dense_layers": layers, "intermediate": family.integer(config, "intermediate_size")}


def _mixture(dense_layers: int, layers: int, intermediate: int, **experts: Any) -> dict[str, Any]:
    fields = {"dense_layers": dense_layers, "intermediate": intermediate if dense_layers else 0}
    return {**fields, **experts} if dense_layers < layers else fields


def _sizes(config: ModelConfig, family: Family, experts: str, width: str, visits: str = "") -> dict[str, Any]:
    return {
        "experts": family.integer(config, experts),
        "experts_per_token": family.integer(config, visits or "num_experts_per_tok"),
        "expert_intermediate": family.integer(config, width),
    }


def qwen(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """Qwen: layers of `mlp_only_layers` and those that `decoder_sparse_step` skips are dense; maybe a shared expert."""
    only = _layer_list(config, "mlp_only_layers", layers)
    step = integer(config, "decoder_sparse_step", 1)
    key = first_key(config, ("num_experts", "num_local_experts"))
    experts = family.integer(config, key)
    count = layers if not experts else sum(1 for layer in range(layers) if layer in only or (layer + 1) % step)
    dense_width = family.integer(config, "intermediate_size") if count else 0
    if count == layers:
        return _mixture(layers, layers, dense_width)
    shared = 0
    if "shared_expert_intermediate_size" in family.reads:
        shared = family.integer(config, "shared_expert_intermediate_size")
    sizes = _sizes(config, family, key, "moe_intermediate_size")
    return _mixture(count, layers, dense_width, **sizes, shared_intermediate=shared, shared_gate=shared > 0)


def everywhere(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """Mixtral and its like: experts of `intermediate_size` in every layer, none shared."""
    key = first_key(config, ("num_local_experts", "num_experts"))
    return {"dense_layers": 0, "intermediate": 0, **_sizes(config, family, key, "intermediate_size")}


def gpt_oss(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """GPT-OSS: as Mixtral, with biases on router and experts."""
    return {**everywhere(config, family, layers), "router_bias": True, "expert_bias": True}


def deepseek(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """DeepSeek and its like: the first `first_k_dense_replace` layers are dense, shared experts beside the routed."""
    kinds = listed(config, "mlp_layer_types", layers)
    if kinds is not None:
        unknown = [kind for kind in kinds if kind not in ("dense", "sparse")]
        if unknown:
            raise config.error(f'an MLP of type "{unknown[0]}" cannot be priced', "mlp_layer_types")
        count = kinds.count("dense")
    else:
        first = family.integer(config, "first_k_dense_replace")
        step = integer(config, "moe_layer_freq", 1)
        count = sum(1 for layer in range(layers) if layer < first or layer % step)
    key = first_key(config, ("n_routed_experts", "num_local_experts"))
    if config.facts.get(key, family.defaults.get(key)) is None:
        count = layers
    dense_width = family.integer(config, "intermediate_size") if count else 0
    if count == layers:
        return _mixture(layers, layers, dense_width)
    sizes = _sizes(config, family, key, "moe_intermediate_size")
    shared = _shared(config, family, "n_shared_experts") * sizes["expert_intermediate"]
    return _mixture(count, layers, dense_width, **sizes, shared_intermediate=shared)


def _shared(config: ModelConfig, family: Family, key: str) -> int:
    """Return the number of shared experts; null is none."""
    if key in config.facts and config.facts[key] is None:
        return 0
    return integer(config, key, family.defaults.get(key, 0))


def llama4(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """Llama 4: each `interleave_moe_layer_step`-th layer (or `moe_layers`) has experts and one shared expert."""
    stated = config.facts.get("moe_layers")
    step = family.integer(config, "interleave_moe_layer_step")
    mixed = _layer_list(config, "moe_layers", layers) if stated is not None else range(step - 1, layers, step)
    count = layers - len(set(mixed))
    sizes = _sizes(config, family, "num_local_experts", "intermediate_size")
    width = family.integer(config, "intermediate_size_mlp") if count else 0
    return _mixture(count, layers, width, **sizes, shared_intermediate=sizes["expert_intermediate"])


def nemotron_h(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """Nemotron-H: a layer is a mixer, a dense MLP or a mixture of experts, which may work on a narrower stream."""
    kinds = nemotron_pattern(config) or ()
    count, mixed = kinds.count("mlp"), kinds.count("moe")
    fields: dict[str, Any] = {"bare_layers": layers - count - mixed, "dense_layers": count, "intermediate": 0}
    if count:
        fields["intermediate"] = family.integer(config, "intermediate_size")
    if mixed:
        fields |= _sizes(config, family, "n_routed_experts", "moe_intermediate_size")
        width = integer(config, "moe_shared_expert_intermediate_size", 0)
        fields["shared_intermediate"] = _shared(config, family, "n_shared_experts") * width
        if config.facts.get("moe_latent_size"):
            fields["expert_hidden"] = integer(config, "moe_latent_size")
    return fields


def gemma4(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """Gemma 4: a dense MLP in every layer, and experts beside it if `enable_moe_block`."""
    width = family.integer(config, "intermediate_size")
    if not boolean(config, "enable_moe_block"):
        return {"dense_layers": layers, "intermediate": width}
    sizes = _sizes(config, family, "num_experts", "moe_intermediate_size", "top_k_experts")
    return {"dense_layers": 0, "intermediate": 0, **sizes, "shared_intermediate": width}


def ernie(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """ERNIE 4.5: experts from `moe_layer_start_index` to `moe_layer_end_index`, each `moe_layer_interval`-th layer."""
    start, step = integer(config, "moe_layer_start_index", 1), integer(config, "moe_layer_interval", 1)
    end = config.facts.get("moe_layer_end_index", -1)
    if type(end) is not int:
        raise config.error(f"`moe_layer_end_index` must be a layer or -1, got {show(end)}", "moe_layer_end_index")
    last = layers - 1 if end == -1 else end
    mixed = [layer for layer in range(layers) if start <= layer <= last and (layer + 1) % step == 0]
    count = layers - len(mixed)
    sizes = _sizes(config, family, "moe_num_experts", "moe_intermediate_size", "moe_k")
    shared = _shared(config, family, "moe_num_shared_experts") * sizes["expert_intermediate"]
    width = family.integer(config, "intermediate_size") if count else 0
    return _mixture(count, layers, width, **sizes, shared_intermediate=shared)


def granite(config: ModelConfig, family: Family, layers: int) -> dict[str, Any]:
    """Granite: a shared MLP of `shared_intermediate_size`, with experts of `intermediate_size` beside it if any."""
    shared = integer(config, "shared_intermediate_size", 0 if family.mixers is None else 1024)
    if not family.integer(config, "num_local_experts"):
        return {"dense_layers": layers, "intermediate": shared}
    sizes = _sizes(config, family, "num_local_experts", "intermediate_size")
    return {"dense_layers": 0, "intermediate": 0, **sizes, "shared_intermediate": shared}


def _layer_list(config: ModelConfig, key: str, layers: int) -> list[int]:
    only = config.facts.get(key) or []
    if not isinstance(only, list) or not all(type(layer) is int and 0 <= layer < layers for layer in only):
        message = f"`{key}` must be a list of layers from 0 to {layers - 1}, got {show(only)}"
        raise config.error(message, key)
    return only
