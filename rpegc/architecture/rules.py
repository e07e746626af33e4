"""The rules that every shape obeys, each with the field of `Architecture` that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rpegc.architecture.mixers import ScoreMixer
from rpegc.errors import InputError

if TYPE_CHECKING:
    from rpegc.architecture.model import Architecture


class ArchitectureError(InputError):
    """A shape that no transformer can have; `field` names the field of `Architecture` that breaks the rule."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


_Rule = tuple[str, str, Callable[["Architecture"], bool]]

RULES: tuple[_Rule, ...] = (
    ("hidden", "hidden must be at least 1: {a.hidden}", lambda a: a.hidden >= 1),
    ("layers", "layers must be at least 1: {a.layers}", lambda a: a.layers >= 1),
    ("vocabulary", "vocabulary must be at least 1: {a.vocabulary}", lambda a: a.vocabulary >= 1),
    ("head_dim", "head_dim must be at least 1: {a.head_dim}", lambda a: a.head_dim >= 1),
    ("max_positions", "max_positions must be at least 1: {a.max_positions}", lambda a: a.max_positions >= 1),
    ("mlp_matrices", "mlp_matrices must be 2 or 3: {a.mlp_matrices}", lambda a: a.mlp_matrices in (2, 3)),
    (
        "heads",
        "kv_heads must divide heads: {a.heads} / {a.kv_heads}",
        lambda a: 1 <= a.kv_heads <= a.heads and a.heads % a.kv_heads == 0,
    ),
    (
        "dense_layers",
        "dense_layers must lie between 0 and layers: {a.dense_layers} of {a.layers}",
        lambda a: 0 <= a.dense_layers <= a.layers - a.bare_layers and a.bare_layers >= 0,
    ),
    (
        "intermediate",
        "dense layers need an intermediate of at least 1: {a.dense_layers} layers, intermediate {a.intermediate}",
        lambda a: a.intermediate >= (1 if a.dense_layers else 0),
    ),
    (
        "experts_per_token",
        "MoE layers need 1 <= experts_per_token <= experts: {a.experts_per_token} of {a.experts}",
        lambda a: a.moe_layers == 0 or 1 <= a.experts_per_token <= a.experts,
    ),
    (
        "expert_intermediate",
        "MoE layers need an expert_intermediate of at least 1: {a.expert_intermediate}",
        lambda a: a.moe_layers == 0 or a.expert_intermediate >= 1,
    ),
    (
        "shared_intermediate",
        "shared_intermediate must not be negative: {a.shared_intermediate}",
        lambda a: a.shared_intermediate >= 0,
    ),
    (
        "own_mixers",
        "mixers stand in at least one layer each and in no more than there are: {a.mixer_layers} in {a.layers} layers",
        lambda a: all(mixer.layers >= 1 for mixer in a.mixers) and a.mixer_layers <= a.layers,
    ),
    (
        "own_mixers",
        "at least one layer must be attention: a model of recurrent layers alone has no cache that grows",
        lambda a: any(isinstance(mixer, ScoreMixer) for mixer in a.mixers),
    ),
)
