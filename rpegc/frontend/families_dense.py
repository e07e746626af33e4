"""Families of plain attention with dense MLPs, with and without windows."""

from __future__ import annotations

from dataclasses import replace

from rpegc.frontend import config_experts as experts
from rpegc.frontend import config_mixers as mixers
from rpegc.frontend.config_json import ModelConfig
from rpegc.frontend.config_values import boolean, integer
from rpegc.frontend.family import Family, Heads
from rpegc.frontend.family_defaults import CODE, GELU, WINDOW, sizes


def _apertus_activation(config: ModelConfig, heads: Heads) -> int:
    return 2 * heads.layers  # two learned slopes of xIELU a layer, arXiv 2411.13010


def _phi_head(config: ModelConfig, heads: Heads) -> int:
    return integer(config, "vocab_size", 51200)  # the bias of the language-model head


def _gemma4_experts(config: ModelConfig, heads: Heads) -> int:
    if not boolean(config, "enable_moe_block"):
        return 0
    scales = heads.hidden + integer(config, "num_experts")  # of the router, and one per expert
    return heads.layers * (3 * heads.hidden + scales)  # three more norms


_GEMMA = Family(classes=("Gemma",), defaults={"num_key_value_heads": 16, "head_dim": 256}, tied=True, activations=GELU)
_GEMMA2 = replace(
    _GEMMA,
    classes=("Gemma2",),
    defaults=sizes(2304, 9216, 26, 8, 4, 256000, 8192, head_dim=256, sliding_window=4096),
    activation_keys=("hidden_activation", "hidden_act"),
    norms=4,
    kinds=mixers.every(2, key=""),
    mixers=mixers.windowed,
    reads=WINDOW,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
)
_GEMMA3 = replace(
    _GEMMA2,
    classes=("Gemma3", "Gemma3Text"),
    defaults=sizes(2304, 9216, 26, 8, 4, 262208, 131072, head_dim=256, sliding_window=4096),
    qk_norm="head",
    kinds=mixers.every(6),
    stretched=False,
)
QWEN3 = Family(
    classes=("Qwen3",),
    defaults={"num_key_value_heads": 32, "head_dim": 128},
    qk_norm="head",
    kinds=mixers.late_windows,
    mixers=mixers.windowed,
    reads=WINDOW,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
)
QWEN2 = Family(
    classes=("Qwen2",),
    defaults={"num_key_value_heads": 32},
    qkv_bias="always",
    kinds=mixers.late_windows,
    mixers=mixers.windowed,
    reads=WINDOW,
)
_MISTRAL = Family(
    classes=("Mistral",),
    defaults=sizes(4096, 14336, 32, 32, 8, 32000, 131072, sliding_window=4096),
    kinds=mixers.mistral_window,
    mixers=mixers.windowed,
    reads=WINDOW,
)
_GLM4 = Family(classes=("Glm4",), defaults={"num_key_value_heads": 2, "head_dim": 128}, norms=4)
_GLM4 = replace(_GLM4, qkv_bias="attention_bias", bias_default=True)
OLMO2 = Family(classes=("Olmo2",), qk_norm="full", qkv_bias="attention_bias", output_bias="attention_bias")
_COHERE = Family(classes=("Cohere",), tied=True, norms=1, qkv_bias="attention_bias", output_bias="attention_bias")
DENSE: dict[str, Family] = {
    "llama": Family(classes=("Llama",), mlp_bias="mlp_bias", qkv_bias="attention_bias", output_bias="attention_bias"),
    "mistral": _MISTRAL,
    "ministral": replace(_MISTRAL, classes=("Ministral",)),
    "ministral3": replace(
        _MISTRAL,
        classes=("Ministral3",),
        defaults=sizes(4096, 14336, 34, 32, 8, 131072, 262144, head_dim=128),
        kinds=mixers.window_everywhere,
    ),
    "qwen2": QWEN2,
    "qwen2_vl_text": replace(QWEN2, defaults={"num_key_value_heads": 8}),
    "qwen2_5_vl_text": replace(QWEN2, defaults={"num_key_value_heads": 8}),
    "qwen3": QWEN3,
    "qwen3_vl_text": replace(QWEN3, classes=("Qwen3VLText",)),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gemma4_text": replace(
        _GEMMA3,
        classes=("Gemma4", "Gemma4Text"),
        defaults={
            **sizes(2304, 9216, 30, 8, 4, 262144, 131072, head_dim=256, sliding_window=512),
            "hidden_size_per_layer_input": 256,
        },
        kinds=mixers.last_is_full,
        mixers=mixers.gemma4,
        mixture=experts.gemma4,
        reads=WINDOW | {"num_experts"},
        others=_gemma4_experts,
    ),
    "glm": replace(_GLM4, classes=("Glm",), norms=2),
    "glm4": _GLM4,
    "glm4v_text": replace(_GLM4, classes=("Glm4vText",), defaults={"num_key_value_heads": 2}, qkv_bias="always"),
    "phi": Family(
        classes=("Phi",),
        activations=GELU,
        mlp_matrices=2,
        qkv_bias="always",
        output_bias="always",
        mlp_bias="always",
        norms=1,
        norm_bias=True,
        others=_phi_head,
    ),
    "phi3": Family(
        classes=("Phi3",),
        kinds=mixers.window_everywhere,
        mixers=mixers.windowed,
        reads=WINDOW | CODE,
    ),
    "apertus": Family(
        classes=("Apertus",),
        activations=("xielu",),
        mlp_matrices=2,
        qk_norm="head",
        others=_apertus_activation,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "arcee": Family(
        classes=("Arcee",),
        activations=("relu2",),
        mlp_matrices=2,
        mlp_bias="mlp_bias",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "nemotron": Family(
        classes=("Nemotron",),
        activations=("relu2",),
        mlp_matrices=2,
        mlp_bias="mlp_bias",
        norm_bias=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "olmo2": OLMO2,
    "olmo3": replace(
        OLMO2,
        classes=("Olmo3",),
        defaults={"sliding_window": 4096},
        kinds=mixers.every(4, key=""),
        mixers=mixers.windowed,
        reads=WINDOW,
    ),
    "granite": Family(
        classes=("Granite",), mlp_bias="mlp_bias", qkv_bias="attention_bias", output_bias="attention_bias"
    ),
    "smollm3": Family(
        classes=("SmolLM3",),
        defaults={"num_key_value_heads": 4},
        tied=True,
        mlp_bias="mlp_bias",
        kinds=mixers.late_windows,
        mixers=mixers.windowed,
        reads=WINDOW,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "seed_oss": Family(
        classes=("SeedOss",),
        defaults={"num_key_value_heads": 8, "head_dim": 128},
        qkv_bias="attention_bias",
        output_bias="attention_out_bias",
        mlp_bias="mlp_bias",
    ),
    "ernie4_5": Family(
        classes=("Ernie4_5",),
        defaults={"num_key_value_heads": 2, "head_dim": 128},
        tied=True,
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
    ),
    "hunyuan_v1_dense": Family(
        classes=("HunYuanDenseV1",), qk_norm="head", qkv_bias="attention_bias", output_bias="attention_bias"
    ),
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        classes=("Cohere2",),
        defaults={"sliding_window": 4096},
        kinds=mixers.every(4),
        mixers=mixers.windowed,
        reads=WINDOW,
    ),
    "exaone4": Family(
        classes=("Exaone4",),
        qk_norm="head",
        kinds=mixers.exaone,
        mixers=mixers.windowed,
        reads=WINDOW,
    ),
    "starcoder2": Family(
        classes=("Starcoder2",),
        defaults={"num_key_value_heads": 2},
        tied=True,
        activations=GELU,
        mlp_matrices=2,
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        bias_default=True,
        norm_bias=True,
        kinds=mixers.window_everywhere,
        mixers=mixers.windowed,
        reads=WINDOW,
    ),
}
