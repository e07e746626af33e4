"""Attention of every model that the engine runs: causal over right-padded rows, split by heads (Ulysses), or cached.

Transformers models call whatever function is registered under `_attn_implementation`; ours passes query, key and value
on to the *context* of the call. Shapes: query (B, H, S, D), key and value (B, K, S, D), result (B, S, H, D), with B
rows, S tokens, H heads, K key-value heads and D channels of a head. Rows are padded on the right, so that under the
causal mask no token sees padding.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "rpegc"


class AttentionContext(Protocol):
    """How one call of a model attends."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Return (B, H, S, D)."""
        ...


class Causal:
    """Every token sees those before it in its row."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See `AttentionContext`."""
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)


class Ulysses:
    """Each rank of a group holds a slice of every row; heads are exchanged for tokens around attention.

    DeepSpeed-Ulysses, arXiv 2309.14509. Heads must divide by the group's size; key-value heads divide by it or into it.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.size = dist.get_world_size(group)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See `AttentionContext`."""
        if key.shape[1] < self.size:
            copies = self.size // key.shape[1]
            key, value = key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)
        query, key, value = (self._heads_to_tokens(part) for part in (query, key, value))
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        return self._tokens_to_heads(attended)

    def _heads_to_tokens(self, part: Tensor) -> Tensor:
        rows, heads, tokens, channels = part.shape
        split = part.view(rows, self.size, heads // self.size, tokens, channels).permute(1, 0, 2, 3, 4)
        moved = _AllToAll.apply(split.contiguous(), self.group)
        return moved.permute(1, 2, 0, 3, 4).reshape(rows, heads // self.size, self.size * tokens, channels)

    def _tokens_to_heads(self, part: Tensor) -> Tensor:
        rows, heads, tokens, channels = part.shape
        split = part.reshape(rows, heads, self.size, tokens // self.size, channels).permute(2, 0, 1, 3, 4)
        moved = _AllToAll.apply(split.contiguous(), self.group)
        return moved.permute(1, 0, 2, 3, 4).reshape(rows, self.size * heads, tokens // self.size, channels)


class _AllToAll(torch.autograd.Function):
    """Exchange the first dimension, one entry a rank; its own adjoint."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        ctx.group = group
        result = torch.empty_like(part)
        dist.all_to_all_single(result, part, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        result = torch.empty_like(gradient)
        dist.all_to_all_single(result, gradient, group=ctx.group)
        return result, None


def register() -> None:
    """Tell Transformers of our attention; masks are the context's business, so that none is made."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, lambda *arguments, **options: None)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    attention_context: AttentionContext | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    scale = scaling if scaling is not None else float(query.shape[-1]) ** -0.5
    context = attention_context or Causal()
    return context.attend(module.layer_idx, query, key, value, scale).transpose(1, 2), None
