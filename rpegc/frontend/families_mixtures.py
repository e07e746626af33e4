"""Families of plain attention, with and without windows, and mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from rpegc.frontend import config_experts as experts
from rpegc.frontend import config_mixers as mixers
from rpegc.frontend.config_json import ModelConfig
from rpegc.frontend.config_values import boolean, integer
from rpegc.frontend.families_dense import OLMO2, QWEN2, QWEN3
from rpegc.frontend.family import Family, Heads
from rpegc.frontend.family_defaults import CODE, LOCAL, PREDICTION, QUANTISED, ROUTED, WINDOW, sizes


def _phi_moe_head(config: ModelConfig, heads: Heads) -> int:
    return integer(config, "vocab_size", 32064) * boolean(config, "lm_head_bias")


def _ernie_balance(config: ModelConfig, heads: Heads) -> int:
    layers = experts.ernie(config, MIXTURES["ernie4_5_moe"], heads.layers)
    return (heads.layers - int(layers["dense_layers"])) * integer(config, "moe_num_experts", 64)


_QWEN3_MOE = replace(
    QWEN3,
    classes=("Qwen3Moe",),
    defaults={"num_key_value_heads": 4},
    mixture=experts.qwen,
    reads=WINDOW | {"num_experts", "num_local_experts"},
)
_GLM4_MOE = Family(
    classes=("Glm4Moe",),
    defaults={
        **sizes(4096, 10944, 46, 96, 8, 151552, 131072),
        **{"moe_intermediate_size": 1408, "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1},
        "first_k_dense_replace": 1,
    },
    qkv_bias="attention_bias",
    qk_norm="key",
    mixture=experts.deepseek,
    reads=ROUTED,
    active_tables=0,
)
MIXTURES: dict[str, Family] = {
    "llama4_text": Family(
        classes=("Llama4", "Llama4Text"),
        defaults={
            **sizes(5120, 8192, 48, 40, 8, 202048, 131072, head_dim=128),
            **{"intermediate_size_mlp": 16384, "num_local_experts": 16, "num_experts_per_tok": 1},
            **{"interleave_moe_layer_step": 1, "attention_chunk_size": 8192},
        },
        kinds=mixers.llama4_blocks,
        mixers=mixers.windowed,
        mixture=experts.llama4,
        reads=frozenset({"num_local_experts", "attention_chunk_size"}),
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "mixtral": Family(
        classes=("Mixtral",),
        defaults={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
        kinds=mixers.window_everywhere,
        mixers=mixers.windowed,
        mixture=experts.everywhere,
        reads=LOCAL,
    ),
    "qwen2_moe": replace(
        QWEN2,
        classes=("Qwen2Moe",),
        defaults={"num_key_value_heads": 16, "num_experts": 60, "shared_expert_intermediate_size": 5632},
        qkv_bias="qkv_bias",
        bias_default=True,
        mixture=experts.qwen,
        reads=WINDOW | {"num_experts", "shared_expert_intermediate_size"},
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": replace(
        _QWEN3_MOE, classes=("Qwen3VLMoeText",), defaults={"num_key_value_heads": 16, "head_dim": 128}
    ),
    "glm4_moe": _GLM4_MOE,
    "glm4v_moe_text": replace(_GLM4_MOE, classes=("Glm4vMoeText",), qk_norm="", bias_default=True),
    "gpt_oss": Family(
        classes=("GptOss",),
        defaults={
            **sizes(2880, 2880, 36, 64, 8, 201088, 131072, head_dim=64, sliding_window=128),
            **{"num_local_experts": 128, "num_experts_per_tok": 4},
        },
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        bias_default=True,
        sinks=True,
        kinds=mixers.every(2, key=""),
        mixers=mixers.windowed,
        mixture=experts.gpt_oss,
        reads=LOCAL | QUANTISED,
        active_tables=1,
    ),
    "phimoe": Family(
        classes=("PhiMoE", "Phimoe"),
        defaults={"num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 2},
        kinds=mixers.window_everywhere,
        mixers=mixers.windowed,
        mixture=experts.everywhere,
        norm_bias=True,
        reads=LOCAL | CODE,
        others=_phi_moe_head,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "olmoe": replace(
        OLMO2,
        classes=("Olmoe",),
        defaults={"num_local_experts": 64, "num_experts_per_tok": 8},
        mixture=experts.everywhere,
        reads=LOCAL - WINDOW,
    ),
    "granitemoe": Family(
        classes=("GraniteMoe",),
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
        mixture=experts.everywhere,
        reads=LOCAL - WINDOW,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "ernie4_5_moe": Family(
        classes=("Ernie4_5_Moe",),
        defaults={"num_key_value_heads": 4, "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2},
        tied=True,
        qkv_bias="use_bias",
        output_bias="use_bias",
        mixture=experts.ernie,
        reads=PREDICTION | CODE,
        others=_ernie_balance,
    ),
    "dots1": Family(
        classes=("Dots1",),
        defaults={"first_k_dense_replace": 0},
        qk_norm="head",
        kinds=mixers.last_windows,
        mixers=mixers.windowed,
        mixture=experts.deepseek,
        reads=ROUTED | WINDOW,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "minimax_m2": Family(
        classes=("MiniMaxM2",),
        defaults=sizes(3072, 1536, 62, 48, 8, 200064, 196608, head_dim=128, num_experts_per_tok=8),
        qk_norm="full",
        mixture=experts.everywhere,
        reads=LOCAL | CODE | QUANTISED,
        active_tables=1,
    ),
}
