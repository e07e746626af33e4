"""Parts that the tables of families share: default sizes, keys that go together."""

from __future__ import annotations

GELU = ("gelu_pytorch_tanh", "gelu", "gelu_new", "gelu_fast")
WINDOW = frozenset({"sliding_window"})
CODE = frozenset({"auto_map"})
QUANTISED = frozenset({"quantization_config"})
PREDICTION = frozenset({"num_nextn_predict_layers", "mtp_num_hidden_layers"})
ROUTED = frozenset({"n_routed_experts", "n_shared_experts", "num_local_experts"}) | CODE | QUANTISED | PREDICTION
LOCAL = frozenset({"num_local_experts", "num_experts"}) | WINDOW


def sizes(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocabulary: int, positions: int, **more: int
) -> dict[str, int]:
    """Return the default sizes of a configuration class, in the order in which those classes list them."""
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        **more,
    }
