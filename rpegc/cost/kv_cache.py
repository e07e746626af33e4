"""What attention keeps per sequence while it generates: keys and values, latents, windows, recurrent states.

A layer with grouped queries keeps 2 kv_heads head_dim elements per token, split over min(tp, kv_heads) ranks. A latent
layer (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434) keeps one vector that every rank holds whole. A
layer with a sliding window keeps no more than its last `window` tokens. A linear layer keeps one state per sequence,
read and written at each step, whatever the context.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpegc.architecture import Architecture

STATE_BYTES = 4.0  # recurrent states are kept in FP32


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """Sums over all layers. `whole` and `windowed` are elements per token of context, `window` tokens.

    `state_bytes` per sequence. `shards` is the number of ranks that can split the cache. `score_width` and
    `windowed_score_width` are heads * head_dim of the layers that attend to everything, and of those with a window.
    """

    whole: float
    windowed: float
    window: float
    state_bytes: float
    shards: int
    score_width: float
    windowed_score_width: float
    latent_layers: int


def cache_profile(architecture: Architecture) -> CacheProfile:
    """Return what an architecture keeps per sequence."""
    width = float(architecture.heads * architecture.head_dim)
    shape = getattr(architecture, "cache", None)
    if shape is not None:
        profile: CacheProfile = shape
        return profile
    return CacheProfile(
        whole=float(architecture.kv_elements_per_token),
        windowed=0.0,
        window=0.0,
        state_bytes=0.0,
        shards=architecture.kv_heads,
        score_width=architecture.layers * width,
        windowed_score_width=0.0,
        latent_layers=0,
    )
