"""Models of published generation and RL rows, by what tables call them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from rpegc.architecture import Architecture
from rpegc.catalog import catalogue_models
from rpegc.frontend.hf_config import load_architecture
from rpegc.validate.table import SkipRow

# Pattern of the printed name without its owner, name in the catalogue; the first match wins.
_NAMES = (
    (r"deepseek-?(v3|r1)(-671b)?", "deepseek-ai/DeepSeek-V3"),
    (r"kimi-k2(\.5)?", "moonshotai/Kimi-K2-Instruct"),
    (r"gpt-oss-(\d+b)", r"openai/gpt-oss-\1"),
    (r"llama-?3(?:\.[13])?-\(?70b\)?", "meta-llama/Llama-3.1-70B"),
    (r"llama-?3(?:\.1)?-\(?8b\)?", "meta-llama/Llama-3.1-8B"),
    (r"llama-?3\.1-405b", "meta-llama/Llama-3.1-405B"),
    (r"llama-?3\.2-(\d)b", r"meta-llama/Llama-3.2-\1B"),
    (r"llama-?2?-?(\d+)b", r"meta-llama/Llama-2-\1b-hf"),
    (r"llama-4-scout.*", "meta-llama/Llama-4-Scout-17B-16E"),
    (r"llama-4-maverick.*", "meta-llama/Llama-4-Maverick-17B-128E"),
    (r"mistral-7b", "mistralai/Mistral-7B-v0.1"),
    (r"mixtral-8x(\d+)b", r"mistralai/Mixtral-8x\1B-v0.1"),
    (r"qwen2(\.5-math)?-7b", "Qwen/Qwen2.5-7B"),
    (r"qwen3-235b.*", "Qwen/Qwen3-235B-A22B"),
    (r"qwen3-30b.*", "Qwen/Qwen3-30B-A3B"),
    (r"qwen3\.5-397b", "Qwen/Qwen3.5-397B-A17B"),
    (r"gemma-(\d)-(\d+)b(-it)?", r"google/gemma-\1-\2b-it"),
)
# Hidden size, layers, vocabulary, heads, KV heads, intermediate of models that the catalogue lacks: config.json of
# deepseek-ai/deepseek-llm-7b-chat and codellama/CodeLlama-34b-hf.
_PLAIN = {
    r"deepseek-llm-7b(-chat)?": ("deepseek-llm-7b", 4096, 30, 102400, 32, 32, 11008),
    r"(code)?llama-?2?-?34b": ("llama-34b", 8192, 48, 32000, 64, 8, 22016),
}


@cache
def published_model(printed: str) -> tuple[str, Architecture]:
    """Return one name for a model wherever it is published, and its architecture; raises SkipRow if unknown."""
    name = printed.split("/")[-1].lower().replace("_", "-").replace(" ", "-")
    name = re.sub(r"-(instruct|base|fp8)$", "", re.sub(r"-(fp8)$", "", name))
    for pattern, shape in _PLAIN.items():
        if re.fullmatch(pattern, name):
            return shape[0], _plain(*shape)
    for pattern, reference in _NAMES:
        if re.fullmatch(pattern, name):
            found = re.sub(pattern, reference, name)
            return found.split("/")[-1].lower(), load_architecture(found, Path("."), None)
    for reference in catalogue_models():
        if reference.split("/")[-1].lower() in (name, f"{name}-instruct"):
            return name, load_architecture(reference, Path("."), None)
    raise SkipRow(f"unknown model {printed}" if printed else "the model is not stated")


def _plain(
    name: str, hidden: int, layers: int, vocabulary: int, heads: int, kv_heads: int, intermediate: int
) -> Architecture:
    return Architecture(
        name=name,
        family="llama",
        hidden=hidden,
        layers=layers,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        mlp_matrices=3,
        dense_layers=layers,
        tied_embeddings=False,
        qk_norm=False,
        qkv_bias=False,
        output_bias=False,
        max_positions=16384,
    )
