"""Models of published generation and RL rows by the names that tables print."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

from rpegc.architecture import Architecture
from rpegc.cost.kv_cache import CacheProfile
from rpegc.validate.table import SkipRow
from rpegc.validate.facts import architecture_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialArchitecture(Architecture):
    attention_matrix: int
    cache: CacheProfile = field(default=None)

    @property
    def attention_matrix_parameters(self) -> int:
        return self.attention_matrix


def special(name, hidden, layers, vocab, heads, kv, hd, inter, dense, experts=0, k=0, ei=0, shared=0, attention=None, cache=None):
    if attention is None:
        attention = hidden * hd * (2 * heads + 2 * kv)
    if cache is None:
        cache = CacheProfile(2.0 * layers * kv * hd, 0, 0, 0, kv, layers * heads * hd, 0, 0)
    return SpecialArchitecture(
        name=name, family="published", hidden=hidden, layers=layers, vocabulary=vocab, heads=heads, kv_heads=kv,
        head_dim=hd, intermediate=inter, mlp_matrices=3, experts=experts, experts_per_token=k, expert_intermediate=ei,
        shared_intermediate=shared, dense_layers=dense, tied_embeddings=False, qk_norm=False, qkv_bias=False,
        output_bias=False, max_positions=131072, attention_matrix=attention, cache=cache)


def mla(heads):
    return 7168 * 1536 + 1536 * heads * 192 + 7168 * 576 + 512 * heads * 256 + heads * 128 * 7168


def latent(layers, heads):
    return CacheProfile(576.0 * layers, 0, 0, 0, 1, layers * heads * 160.0, 0, layers)


SPECIAL = {
    "deepseek-v3": special("deepseek-v3", 7168, 61, 129280, 128, 128, 160, 18432, 3, 256, 8, 2048, 2048, mla(128), latent(61, 128)),
    "kimi-k2": special("kimi-k2", 7168, 61, 163840, 64, 64, 160, 18432, 1, 384, 8, 2048, 2048, mla(64), latent(61, 64)),
    "gpt-oss-120b": special("gpt-oss-120b", 2880, 36, 201088, 64, 8, 64, 0, 0, 128, 4, 2880, 0, None,
        CacheProfile(18 * 1024.0, 18 * 1024.0, 128, 0, 8, 18 * 4096.0, 18 * 4096.0, 0)),
    "qwen3.5-397b-a17b": special("qwen3.5-397b-a17b", 4096, 60, 248320, 32, 2, 256, 0, 0, 512, 10, 1024, 1024,
        # per layer average: 45 linear (qkv 4096*(2*2048+8192), z 8192, out 8192) + 15 gated full
        (45 * (4096 * (2 * 2048 + 8192) + 4096 * 8192 + 8192 * 4096) + 15 * (4096 * 256 * (3 * 32 + 2 * 2))) // 60,
        CacheProfile(15 * 2 * 2 * 256.0, 0, 0, 45 * 64 * 128 * 128 * 4.0, 2, 15 * 8192.0, 0, 0)),
    "mixtral-8x7b": special("mixtral-8x7b", 4096, 32, 32000, 32, 8, 128, 0, 0, 8, 2, 14336),
    "mixtral-8x22b": special("mixtral-8x22b", 6144, 56, 32768, 48, 8, 128, 0, 0, 8, 2, 16384),
    "mistral-7b": special("mistral-7b", 4096, 32, 32000, 32, 8, 128, 14336, 32),
    "llama-4-scout": special("llama-4-scout", 5120, 48, 202048, 40, 8, 128, 0, 0, 16, 1, 8192, 8192),
    "llama-4-maverick": special("llama-4-maverick", 5120, 48, 202048, 40, 8, 128, 16384, 24, 128, 1, 8192, 8192),
    "deepseek-llm-7b": special("deepseek-llm-7b", 4096, 30, 102400, 32, 32, 128, 11008, 30),
    "gemma-3-1b": special("gemma-3-1b", 1152, 26, 262144, 4, 1, 256, 6912, 26),
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
    (r"qwen2\.5-math-7b", "qwen2.5-7b"),
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
