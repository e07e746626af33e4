"""Families of latent attention, linear attention and state-space layers."""

from __future__ import annotations

from dataclasses import replace

from rpegc.frontend import config_experts as experts
from rpegc.frontend import config_mixers as mixers
from rpegc.frontend.family import Family
from rpegc.frontend.family_defaults import CODE, PREDICTION, ROUTED, sizes

_LATENT = ROUTED | {"kv_lora_rank", "q_lora_rank"}
_MAMBA = (
    frozenset({"time_step_limit", "ssm_state_size", "hybrid_override_pattern", "mamba_num_heads", "mamba_n_heads"})
    | CODE
)
_DELTA = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_DELTA_KEYS = PREDICTION | {
    *("attn_output_gate", "full_attention_interval", "linear_num_key_heads", "num_experts"),
    "shared_expert_intermediate_size",
}
_QWEN3_NEXT = Family(
    classes=("Qwen3Next",),
    defaults={
        **sizes(2048, 5632, 48, 16, 2, 151936, 32768, head_dim=256),
        **_DELTA,
        **{"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512},
        "shared_expert_intermediate_size": 512,
    },
    qk_norm="head",
    gated=True,
    kinds=mixers.every(4, mixers.LINEAR, "full_attention_interval"),
    mixers=mixers.gated_delta,
    mixture=experts.qwen,
    reads=_DELTA_KEYS,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
)
_QWEN35 = replace(
    _QWEN3_NEXT,
    classes=("Qwen3_5", "Qwen3_5Text"),
    defaults={**sizes(4096, 12288, 32, 16, 4, 248320, 32768, head_dim=256), **_DELTA},
    mixture=None,
    reads=_DELTA_KEYS - {"num_experts", "shared_expert_intermediate_size"},
)
_QWEN35_MOE = replace(
    _QWEN3_NEXT,
    classes=("Qwen3_5Moe", "Qwen3_5MoeText"),
    defaults={
        **sizes(2048, 5632, 40, 16, 2, 248320, 32768, head_dim=256),
        **_DELTA,
        **{"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512},
        "shared_expert_intermediate_size": 512,
    },
)
_DEEPSEEK = Family(
    classes=("DeepseekV3", "KimiK2"),
    defaults={
        **sizes(7168, 18432, 61, 128, 128, 129280, 4096),
        **{"moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1},
        **{"first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536},
        **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    },
    mixers=mixers.latent,
    mixture=experts.deepseek,
    reads=_LATENT,
    active_tables=1,
)
_MAMBA2 = {
    **{"mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_n_heads": 128, "mamba_chunk_size": 256},
    **{"num_attention_heads": 32, "num_key_value_heads": 8},
}

SPECIAL: dict[str, Family] = {
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe_text": _QWEN35_MOE,
    "deepseek_v2": replace(
        _DEEPSEEK,
        classes=("DeepseekV2",),
        defaults={
            **{"num_key_value_heads": 32, "n_shared_experts": 2, "first_k_dense_replace": 0, "kv_lora_rank": 512},
            **{"q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
            **{"n_routed_experts": 64},
        },
    ),
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "glm4_moe_lite": replace(
        _DEEPSEEK,
        classes=("Glm4MoeLite",),
        defaults={
            **sizes(2048, 10240, 47, 20, 20, 154880, 202752),
            **{"moe_intermediate_size": 1536, "n_routed_experts": 64, "num_experts_per_tok": 4, "n_shared_experts": 1},
            **{"first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": 768},
            **{"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256},
        },
    ),
    "nemotron_h": Family(
        classes=("NemotronH",),
        defaults={
            **sizes(4096, 21504, 52, 32, 8, 131072, 4096, head_dim=128),
            **{"ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4},
            **{"chunk_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
        },
        activations=("relu2",),
        activation_keys=("mlp_hidden_act",),
        mlp_matrices=2,
        mlp_bias="mlp_bias",
        norms=1,
        mixers=mixers.state_space,
        mixture=experts.nemotron_h,
        layers=mixers.nemotron_layers,
        reads=_MAMBA | ROUTED | {"moe_latent_size"},
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "bamba": Family(
        classes=("Bamba",),
        defaults={**_MAMBA2},
        mlp_bias="mlp_bias",
        mixers=mixers.state_space,
        reads=_MAMBA,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "granitemoehybrid": Family(
        classes=("GraniteMoeHybrid",),
        defaults={**_MAMBA2, "num_local_experts": 8, "num_experts_per_tok": 2},
        mixers=mixers.state_space,
        mixture=experts.granite,
        reads=_MAMBA | {"num_local_experts"},
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
}
