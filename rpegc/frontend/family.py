"""What a `model_type` means beyond its keys: the form of a row in the table of families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rpegc.architecture import Mixer
from rpegc.frontend.config_json import ModelConfig, show
from rpegc.frontend.config_values import integer


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How Transformers builds the models of one `model_type`.

    `classes` start the names in `architectures`. `defaults` are sizes of absent keys. `tied` is the default of
    `tie_word_embeddings`. A bias (`qkv_bias`, `output_bias`, `mlp_bias`) is "" for never, "always", or the key that
    decides, with `bias_default` where that is absent. `qk_norm` is "" for none, "head" for one of a head's width for
    all heads, "full" for one over all heads, or "key" for "head" if `use_qk_norm` says so. `norms` counts those of the
    residual stream per layer. `kinds` gives the layer types of a file that states none; `mixers` builds what mixes
    tokens; `mixture` builds the feed-forward layers (None: all dense). `reads` are the keys of `FOREIGN` that the
    family understands. `stretched`: whether a RoPE scaling extends `max_position_embeddings`. `active_tables`:
    as in `Architecture`. `others` counts elements
    that belong to no matrix, norm or bias above.
    """

    classes: tuple[str, ...]
    defaults: Mapping[str, int] = field(default_factory=dict)
    tied: bool = False
    activations: tuple[str, ...] = ("silu",)
    activation_keys: tuple[str, ...] = ("hidden_act",)
    mlp_matrices: int = 3
    qkv_bias: str = ""
    output_bias: str = ""
    mlp_bias: str = ""
    bias_default: bool = False
    qk_norm: str = ""
    gated: bool = False
    sinks: bool = False
    norms: int = 2
    norm_bias: bool = False
    kinds: Callable[[ModelConfig, int], tuple[str, ...]] | None = None
    mixers: Callable[[ModelConfig, Family, Heads], tuple[Mixer, ...]] | None = None
    mixture: Callable[[ModelConfig, Family, int], dict[str, Any]] | None = None
    layers: Callable[[ModelConfig], int] | None = None
    reads: frozenset[str] = frozenset()
    stretched: bool = True
    active_tables: int = 2
    others: Callable[[ModelConfig, Heads], int] | None = None

    def integer(self, config: ModelConfig, key: str) -> int:
        """Return an integer of the file, with the family's default."""
        return integer(config, key, self.defaults.get(key))


@dataclass(frozen=True, slots=True)
class Heads:
    """The sizes that mixers share: layers, hidden width, heads, key and value heads, width of a head."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int


def heads_of(config: ModelConfig, family: Family, layers: int) -> Heads:
    """Read the sizes of attention; an absent `head_dim` is the family's, a null one hidden / heads."""
    heads = family.integer(config, "num_attention_heads")
    hidden = family.integer(config, "hidden_size")
    return Heads(layers, hidden, heads, _kv_heads(config, family, heads), _head_dim(config, family, hidden, heads))


def _kv_heads(config: ModelConfig, family: Family, heads: int) -> int:
    default = family.defaults.get("num_key_value_heads")
    stated = default if default and "num_key_value_heads" not in config.facts else heads
    kv_heads = integer(config, "num_key_value_heads", stated)
    if heads % kv_heads:
        message = f"num_key_value_heads must divide num_attention_heads: {heads} / {kv_heads}"
        raise config.error(message, "num_key_value_heads")
    return kv_heads


def _head_dim(config: ModelConfig, family: Family, hidden: int, heads: int) -> int:
    if "qk_nope_head_dim" in family.defaults:  # latent attention: `head_dim` says nothing about queries
        return family.integer(config, "qk_nope_head_dim") + family.integer(config, "qk_rope_head_dim")
    if config.facts.get("head_dim") is not None:
        return integer(config, "head_dim")
    if family.defaults.get("head_dim") and "head_dim" not in config.facts:
        return family.defaults["head_dim"]
    if hidden % heads:
        message = f"without head_dim, num_attention_heads must divide hidden_size: {hidden} / {heads}"
        raise config.error(message, "num_attention_heads")
    return hidden // heads


def listed(config: ModelConfig, key: str, layers: int) -> list[str] | None:
    """Return a list that names every layer, None where the file has none; refuse anything else."""
    value = config.facts.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != layers or not all(isinstance(kind, str) for kind in value):
        raise config.error(f"`{key}` must be a list that names the {layers} layers: `{key}` is {show(value)}", key)
    return [str(kind) for kind in value]
