"""The families that can be priced, by `model_type`; the rest is refused by name.

Defaults for absent keys are those of the family's configuration class in Transformers 4.57.1 and, for families that
came later, 5.24.0 (`transformers/models/<family>/configuration_<family>.py`).
"""

from __future__ import annotations

from rpegc.frontend.families_dense import DENSE
from rpegc.frontend.families_mixtures import MIXTURES
from rpegc.frontend.families_special import SPECIAL

FAMILIES = {**DENSE, **MIXTURES, **SPECIAL}
"""Text models, by the `model_type` that their own configuration has."""

WRAPPERS = {
    "gemma3": ("Gemma3", "gemma3_text"),
    "gemma4": ("Gemma4", "gemma4_text"),
    "glm4v": ("Glm4v", "glm4v_text"),
    "glm4v_moe": ("Glm4vMoe", "glm4v_moe_text"),
    "internvl": ("InternVL", "qwen2"),
    "kimi_k25": ("KimiK25", "deepseek_v3"),
    "llama4": ("Llama4", "llama4_text"),
    "llava": ("Llava", "llama"),
    "llava_next": ("LlavaNext", "llama"),
    "mistral3": ("Mistral3", "mistral"),
    "qwen2_5_vl": ("Qwen2_5_VL", "qwen2_5_vl_text"),
    "qwen2_vl": ("Qwen2VL", "qwen2_vl_text"),
    "qwen3_5": ("Qwen3_5", "qwen3_5_text"),
    "qwen3_5_moe": ("Qwen3_5Moe", "qwen3_5_moe_text"),
    "qwen3_vl": ("Qwen3VL", "qwen3_vl_text"),
    "qwen3_vl_moe": ("Qwen3VLMoe", "qwen3_vl_moe_text"),
}
"""Models that nest a text model in `text_config`: start of their class names, and the text model's default type."""
