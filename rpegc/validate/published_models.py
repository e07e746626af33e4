"""Models of published generation and RL rows by the names that tables print."""

from __future__ import annotations

import re
from functools import cache

from rpegc.architecture import Architecture, Attention, GatedDelta, LatentAttention
from rpegc.validate.facts import architecture_of
from rpegc.validate.table import SkipRow


def special(name, hidden, layers, vocab, heads, kv, hd, inter, dense, experts=0, k=0, ei=0, shared=0, mixers=(), tied=False):
    return Architecture(
        name=name, family="published", hidden=hidden, layers=layers, vocabulary=vocab, heads=heads, kv_heads=kv,
        head_dim=hd, intermediate=inter, mlp_matrices=3, experts=experts, experts_per_token=k, expert_intermediate=ei,
        shared_intermediate=shared, dense_layers=dense, tied_embeddings=tied, qk_norm=False, qkv_bias=False,
        output_bias=False, max_positions=131072, own_mixers=mixers)


def latent(layers, heads):
    return (LatentAttention(layers=layers, heads=heads, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),)


SPECIAL = {
    "deepseek-v3": special("deepseek-v3", 7168, 61, 129280, 128, 128, 160, 18432, 3, 256, 8, 2048, 2048, latent(61, 128)),
    "kimi-k2": special("kimi-k2", 7168, 61, 163840, 64, 64, 160, 18432, 1, 384, 8, 2048, 2048, latent(61, 64)),
    "gpt-oss-120b": special("gpt-oss-120b", 2880, 36, 201088, 64, 8, 64, 0, 0, 128, 4, 2880, 0,
        (Attention(layers=18, heads=64, kv_heads=8, head_dim=64), Attention(layers=18, heads=64, kv_heads=8, head_dim=64, reach=128))),
    "qwen3.5-397b-a17b": special("qwen3.5-397b-a17b", 4096, 60, 248320, 32, 2, 256, 0, 0, 512, 10, 1024, 1024,
        (GatedDelta(layers=45, key_heads=16, value_heads=64, key_dim=128, value_dim=128, kernel=4),
         Attention(layers=15, heads=32, kv_heads=2, head_dim=256, gated=True))),
    "mixtral-8x7b": special("mixtral-8x7b", 4096, 32, 32000, 32, 8, 128, 0, 0, 8, 2, 14336),
    "mixtral-8x22b": special("mixtral-8x22b", 6144, 56, 32768, 48, 8, 128, 0, 0, 8, 2, 16384),
    "mistral-7b": special("mistral-7b", 4096, 32, 32000, 32, 8, 128, 14336, 32),
    "llama-4-scout": special("llama-4-scout", 5120, 48, 202048, 40, 8, 128, 0, 0, 16, 1, 8192, 8192),
    "llama-4-maverick": special("llama-4-maverick", 5120, 48, 202048, 40, 8, 128, 16384, 24, 128, 1, 8192, 8192),
    "deepseek-llm-7b": special("deepseek-llm-7b", 4096, 30, 102400, 32, 32, 128, 11008, 30),
    "gemma-3-1b": special("gemma-3-1b", 1152, 26, 262144, 4, 1, 256, 6912, 26, tied=True),
    "llama-34b": special("llama-34b", 8192, 48, 32000, 64, 8, 128, 22016, 48),
}

_NAMES = (
    (r"deepseek-?(v3|r1).*", "deepseek-v3"),
    (r"kimi-k2.*", "kimi-k2"),
    (r"gpt-oss-120b.*", "gpt-oss-120b"),
    (r"llama-?3\.[13][-_]70b.*", "llama-3.1-70b"),
    (r"llama-3-70b.*|llama-3-\(70b\)|llama-3.1-\(70b\)", "llama-3.1-70b"),
    (r"llama-?3\.1[-_]8b.*|llama-3.1-\(8b\)", "llama-3.1-8b"),
    (r"deepseek-llm-7b.*", "deepseek-llm-7b"),
    (r"qwen3-235b.*", "qwen3-235b-a22b"),
    (r"qwen3-30b.*", "qwen3-30b-a3b"),
    (r"qwen2(\.5-math)?-7b", "qwen2.5-7b"),
    (r"gemma-3-1b.*", "gemma-3-1b"),
    (r"codellama-34b|llama2-34b", "llama-34b"),
    (r"llama-?2?-(7|13|70)b", r"llama-2-\1b"),
)


@cache
def published_model(printed: str) -> tuple[str, Architecture]:
    """Return one name for a model wherever it is published, and its architecture; raises SkipRow if unknown."""
    name = printed.split("/")[-1].lower().replace("_", "-").replace(" ", "-").removesuffix("-instruct").removesuffix("-base")
    for pattern, known in _NAMES:
        if re.fullmatch(pattern, name):
            name = re.sub(pattern, known, name)
            break
    if name in SPECIAL:
        return name, SPECIAL[name]
    found = architecture_of({"model": name, "notes": ""})
    return name, found[1]
