"""What mixes tokens in the layers of a `config.json`: attention with its windows, latent attention, recurrences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from rpegc.architecture import Attention, GatedDelta, LatentAttention, Mixer, StateSpace
from rpegc.frontend.config_json import ModelConfig, show
from rpegc.frontend.config_values import boolean, first_key, integer
from rpegc.frontend.family import Family, Heads, listed

FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
_SPELLINGS = {"attention": FULL, "mamba": LINEAR, "mamba2": LINEAR}


def layer_kinds(config: ModelConfig, family: Family, layers: int, allowed: Sequence[str]) -> Counter[str]:
    """Count the layers of each type: those that the file lists, else as the family lays them out.

    Raises InputError that names a type outside `allowed`: it is priced as nothing else.
    """
    stated = listed(config, "layer_types", layers)
    kinds = [_SPELLINGS.get(kind, kind) for kind in stated or (family.kinds(config, layers) if family.kinds else ())]
    kinds = kinds or [FULL] * layers
    for place, kind in enumerate(kinds):
        if kind not in allowed:
            model = config.facts.get("model_type")
            message = f'a layer of type "{kind}" (layer {place} in `layer_types`) of {model} cannot be priced'
            raise config.error(message, "layer_types", f"priced are {', '.join(allowed)}")
    return Counter(kinds)


def bias(config: ModelConfig, family: Family, which: str) -> bool:
    """Decide a bias of the family: "" never, "always", else by its key."""
    return which == "always" or (which != "" and boolean(config, which, family.bias_default))


def norm_elements(config: ModelConfig, family: Family, heads: Heads) -> int:
    """Return the elements of query and key norms."""
    if family.qk_norm == "full":
        return (heads.heads + heads.kv_heads) * heads.head_dim
    present = family.qk_norm == "head" or (family.qk_norm == "key" and boolean(config, "use_qk_norm"))
    return 2 * heads.head_dim * present


def attention(config: ModelConfig, family: Family, heads: Heads) -> Attention:
    """Return attention over all tokens as the family builds it, for one layer."""
    return Attention(
        layers=1,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        qkv_bias=bias(config, family, family.qkv_bias),
        output_bias=bias(config, family, family.output_bias),
        norm_elements=norm_elements(config, family, heads),
        gated=family.gated,
        sinks=family.sinks,
    )


def windowed(config: ModelConfig, family: Family, heads: Heads) -> tuple[Mixer, ...]:
    """Return attention over all tokens, over windows and over blocks, each in its layers."""
    kinds = layer_kinds(config, family, heads.layers, (FULL, SLIDING, CHUNKED))
    one = attention(config, family, heads)
    reach = {FULL: 0}
    if kinds[SLIDING]:
        reach[SLIDING] = _window(config, family)
    if kinds[CHUNKED]:
        reach[CHUNKED] = family.integer(config, "attention_chunk_size")
    return tuple(
        replace(one, layers=kinds[kind], reach=reach[kind], chunked=kind == CHUNKED)
        for kind in (FULL, SLIDING, CHUNKED)
        if kinds[kind]
    )


def _window(config: ModelConfig, family: Family) -> int:
    """Return the window of layers that have one: the family's where the key is absent, an error where it is null."""
    default = None if "sliding_window" in config.facts else family.defaults.get("sliding_window")
    return integer(config, "sliding_window", default)


def gemma4(config: ModelConfig, family: Family, heads: Heads) -> tuple[Mixer, ...]:
    """Return windows of `head_dim` and global layers of `global_head_dim`, whose values may be their keys."""
    kinds = layer_kinds(config, family, heads.layers, (FULL, SLIDING))
    one = attention(config, family, heads)
    width = integer(config, "global_head_dim", 512)
    shared = boolean(config, "attention_k_eq_v")
    stated = shared and config.facts.get("num_global_key_value_heads") is not None
    wide = replace(
        one,
        kv_heads=integer(config, "num_global_key_value_heads") if stated else one.kv_heads,
        head_dim=width,
        norm_elements=2 * width,
        shared_values=shared,
    )
    mixers = []
    if kinds[FULL]:
        mixers.append(replace(wide, layers=kinds[FULL]))
    if kinds[SLIDING]:
        mixers.append(replace(one, layers=kinds[SLIDING], reach=_window(config, family)))
    return tuple(mixers)


def latent(config: ModelConfig, family: Family, heads: Heads) -> tuple[Mixer, ...]:
    """Return multi-head latent attention in all layers; a null `q_lora_rank` projects queries directly."""
    query_rank = config.facts.get("q_lora_rank", family.defaults.get("q_lora_rank"))
    return (
        LatentAttention(
            layers=layer_kinds(config, family, heads.layers, (FULL,))[FULL],
            heads=heads.heads,
            query_rank=0 if query_rank is None else integer(config, "q_lora_rank", family.defaults.get("q_lora_rank")),
            kv_rank=family.integer(config, "kv_lora_rank"),
            nope_dim=family.integer(config, "qk_nope_head_dim"),
            rope_dim=family.integer(config, "qk_rope_head_dim"),
            value_dim=family.integer(config, "v_head_dim"),
            bias=boolean(config, "attention_bias"),
        ),
    )


def gated_delta(config: ModelConfig, family: Family, heads: Heads) -> tuple[Mixer, ...]:
    """Return gated attention and gated delta rules (Qwen3-Next, Qwen3.5), each in its layers."""
    kinds = layer_kinds(config, family, heads.layers, (FULL, LINEAR))
    delta = GatedDelta(
        layers=max(kinds[LINEAR], 1),
        key_heads=family.integer(config, "linear_num_key_heads"),
        value_heads=family.integer(config, "linear_num_value_heads"),
        key_dim=family.integer(config, "linear_key_head_dim"),
        value_dim=family.integer(config, "linear_value_head_dim"),
        kernel=family.integer(config, "linear_conv_kernel_dim"),
    )
    if delta.value_heads % delta.key_heads:
        message = f"linear_num_key_heads must divide linear_num_value_heads: {delta.value_heads} / {delta.key_heads}"
        raise config.error(message, "linear_num_key_heads")
    return _present(config, family, heads, kinds, delta)


def state_space(config: ModelConfig, family: Family, heads: Heads) -> tuple[Mixer, ...]:
    """Return attention and Mamba-2 layers, each in its layers."""
    kinds = mamba_kinds(config, family, heads.layers)
    return _present(config, family, heads, kinds, _mamba(config, family, heads, max(kinds[LINEAR], 1)))


def _present(
    config: ModelConfig, family: Family, heads: Heads, kinds: Counter[str], recurrent: Mixer
) -> tuple[Mixer, ...]:
    one = replace(attention(config, family, heads), layers=max(kinds[FULL], 1))
    return tuple(mixer for mixer, kind in ((one, FULL), (recurrent, LINEAR)) if kinds[kind])


def mamba_kinds(config: ModelConfig, family: Family, layers: int) -> Counter[str]:
    """Count attention and Mamba-2 layers: a pattern of letters, a list of types, or the places of attention."""
    pattern = nemotron_pattern(config)
    if pattern is not None:
        return Counter(kind for kind in pattern if kind in (FULL, LINEAR))
    places = config.facts.get("attn_layer_indices")
    if places is not None and config.facts.get("layer_types") is None:
        if not isinstance(places, list) or not all(type(place) is int and 0 <= place < layers for place in places):
            message = f"`attn_layer_indices` must be a list of layers from 0 to {layers - 1}, got {show(places)}"
            raise config.error(message, "attn_layer_indices")
        return Counter({FULL: len(set(places)), LINEAR: layers - len(set(places))})
    return layer_kinds(config, family, layers, (FULL, LINEAR))


_LETTERS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
_BLOCKS = {"mamba": LINEAR, "attention": FULL, LINEAR: LINEAR, FULL: FULL, "mlp": "mlp", "moe": "moe"}


def nemotron_pattern(config: ModelConfig) -> tuple[str, ...] | None:
    """Return what each layer of a Nemotron-H model is, or None where the file states no pattern."""
    key = first_key(config, ("layers_block_type", "hybrid_override_pattern"))
    stated = config.facts.get(key)
    if stated is None:
        return None
    names = _LETTERS if isinstance(stated, str) else _BLOCKS
    if not isinstance(stated, str | list) or not stated:
        raise config.error(f"`{key}` must name every layer, got {show(stated)}", key)
    for place, letter in enumerate(stated):
        if not isinstance(letter, str) or letter not in names:
            message = f"a layer of type {show(letter)} (layer {place} in `{key}`) cannot be priced"
            raise config.error(message, key, f"priced are {', '.join(names)}")
    return tuple(names[letter] for letter in stated)


def nemotron_layers(config: ModelConfig) -> int:
    """Return how many layers a Nemotron-H model has: those of its pattern, which the stated number must match."""
    pattern = nemotron_pattern(config)
    if pattern is None:
        raise config.error("`hybrid_override_pattern` is missing: it names what each layer is", "model_type")
    layers = integer(config, "num_hidden_layers", len(pattern))
    if layers != len(pattern):
        message = f"the pattern names {len(pattern)} layers, but `num_hidden_layers` is {layers}"
        raise config.error(message, "num_hidden_layers")
    return layers


def _mamba(config: ModelConfig, family: Family, heads: Heads, layers: int) -> StateSpace:
    def size(*keys: str) -> int:
        stated = first_key(config, keys)
        known = next((key for key in keys if key in family.defaults), stated)
        return family.integer(config, stated if config.facts.get(stated) is not None else known)

    count = size("mamba_num_heads", "mamba_n_heads")
    width_key = first_key(config, ("mamba_head_dim", "mamba_d_head"))
    if config.facts.get(width_key) in (None, "auto") and width_key not in family.defaults:
        inner = heads.hidden * integer(config, "mamba_expand", 2)
        if inner % count:
            raise config.error(f"`mamba_n_heads` must divide {inner} channels: {inner} / {count}", "mamba_n_heads")
        width = inner // count
    else:
        width = family.integer(config, width_key)
    groups = size("n_groups", "mamba_n_groups")
    if count % groups:
        raise config.error(f"groups must divide the Mamba heads: {count} / {groups}", "n_groups")
    return StateSpace(
        layers=layers,
        heads=count,
        head_dim=width,
        groups=groups,
        state=size("ssm_state_size", "mamba_d_state"),
        kernel=size("conv_kernel", "mamba_d_conv"),
        chunk=size("chunk_size", "mamba_chunk_size"),
        bias=boolean(config, first_key(config, ("mamba_proj_bias", "use_bias"))),
        convolution_bias=boolean(config, first_key(config, ("use_conv_bias", "mamba_conv_bias")), True),
    )


# How families lay out their layers where the file has no `layer_types`.


def _period(layers: int, period: int, kind: str) -> tuple[str, ...]:
    return tuple(kind if (layer + 1) % period else FULL for layer in range(layers))


def every(period: int, kind: str = SLIDING, key: str = "sliding_window_pattern") -> Callable[..., tuple[str, ...]]:
    """Return the layout in which each `period`-th layer (or what `key` says, if any) attends to all tokens."""

    def kinds(config: ModelConfig, layers: int) -> tuple[str, ...]:
        return _period(layers, integer(config, key, period) if key else period, kind)

    return kinds


def last_is_full(config: ModelConfig, layers: int) -> tuple[str, ...]:
    """Lay out Gemma 4: each sixth layer and the last one attend to all tokens."""
    return (*_period(layers, 6, SLIDING)[:-1], FULL)


def window_everywhere(config: ModelConfig, layers: int) -> tuple[str, ...]:
    """Lay out a model whose layers all have a window if the file states one."""
    return (SLIDING if config.facts.get("sliding_window") is not None else FULL,) * layers


def mistral_window(config: ModelConfig, layers: int) -> tuple[str, ...]:
    """Lay out Mistral: a window in all layers unless `sliding_window` is null; an absent key is the first model's."""
    unlimited = "sliding_window" in config.facts and config.facts["sliding_window"] is None
    return (FULL if unlimited else SLIDING,) * layers


def late_windows(config: ModelConfig, layers: int) -> tuple[str, ...]:
    """Lay out Qwen: from `max_window_layers` on layers have a window, if `use_sliding_window` says so."""
    used = boolean(config, "use_sliding_window") and config.facts.get("sliding_window") is not None
    first = integer(config, "max_window_layers", 28) if used else layers
    return tuple(SLIDING if layer >= first else FULL for layer in range(layers))


def last_windows(config: ModelConfig, layers: int) -> tuple[str, ...]:
    """Lay out dots.llm1: from `max_window_layers` on layers have a window, if the file states one."""
    used = config.facts.get("sliding_window") is not None
    first = integer(config, "max_window_layers", 62) if used else layers
    return tuple(SLIDING if layer >= first else FULL for layer in range(layers))


def exaone(config: ModelConfig, layers: int) -> tuple[str, ...]:
    """Lay out EXAONE 4: with a window, each layer but the `sliding_window_pattern`-th has it."""
    if config.facts.get("sliding_window") is None:
        return (FULL,) * layers
    pattern = config.facts.get("sliding_window_pattern")
    period = len(pattern) if isinstance(pattern, str) and pattern else integer(config, "sliding_window_pattern", 4)
    return _period(layers, period, SLIDING)


def llama4_blocks(config: ModelConfig, layers: int) -> tuple[str, ...]:
    """Lay out Llama 4: layers with rotary positions see blocks, the others all tokens."""
    if "attention_chunk_size" in config.facts and config.facts["attention_chunk_size"] is None:
        return (FULL,) * layers
    stated = config.facts.get("no_rope_layers")
    if not stated:
        return _period(layers, integer(config, "no_rope_layer_interval", 4), CHUNKED)
    if not isinstance(stated, list) or len(stated) != layers:
        message = f"`no_rope_layers` must be a list of {layers} numbers, got {show(stated)}"
        raise config.error(message, "no_rope_layers")
    return tuple(CHUNKED if rope else FULL for rope in stated)
