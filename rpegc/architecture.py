"""Transformer arithmetic: parameters, FLOPs and KV elements of a decoder-only model, from its shape alone.

With multi-head attention, a two-matrix MLP, tied embeddings and no norm weights (`paper_reference`) every figure equals
the closed forms of [PF] = "Performance Foundations of Parallel & Distributed Reasoning Language Models",
arXiv 2608.27046. Grouped queries, gated MLPs, experts, biases and norms generalise them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rpegc.errors import InputError, guess

HEADS = ("logits", "scalar", "none")
"""What stands on top of the layers: a language-model head, one number (critic, reward model), or nothing."""


class ArchitectureError(InputError):
    """A shape that no transformer can have; `field` names the field of `Architecture` that breaks the rule."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of one decoder-only transformer.

    `hidden` is d of [PF], `vocabulary` V, `layers` L, `intermediate` d_ff. `mlp_matrices` is 3 for a gated MLP (gate,
    up, down) and 2 for a plain one. The first or any `dense_layers` layers have a dense MLP of width `intermediate`;
    the others have `experts` of width `expert_intermediate`, of which each token visits `experts_per_token`, plus
    one shared expert of width `shared_intermediate`. `qkv_bias` and `output_bias` are those of attention. `norms`
    is False only for `paper_reference`, since [PF] counts no norm weights.

    Raises ArchitectureError for a shape that breaks a rule.
    """

    name: str
    family: str
    hidden: int
    layers: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    mlp_matrices: int
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    dense_layers: int
    tied_embeddings: bool
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    max_positions: int
    mlp_bias: bool = False
    norms: bool = True

    def __post_init__(self) -> None:
        for field, rule, holds in _RULES:
            if not holds(self):
                raise ArchitectureError(field, rule.format(a=self))

    # Parameters, in elements.

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return self.layers - self.dense_layers

    @property
    def attention_matrix_parameters(self) -> int:
        """Elements of the query, key, value and output matrices of one layer."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def attention_parameters(self) -> int:
        """Elements of one layer's attention: matrices, biases, query and key norms."""
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) * self.qkv_bias + self.hidden * self.output_bias
        return self.attention_matrix_parameters + biases + 2 * self.head_dim * self.qk_norm

    @property
    def dense_mlp_matrix_parameters(self) -> int:
        """Elements of the matrices of one dense MLP."""
        return self.mlp_matrices * self.hidden * self.intermediate

    @property
    def dense_mlp_parameters(self) -> int:
        """Elements of one dense MLP, biases included."""
        biases = (self.mlp_matrices - 1) * self.intermediate + self.hidden
        return self.dense_mlp_matrix_parameters + biases * self.mlp_bias

    @property
    def expert_parameters(self) -> int:
        """Elements of one routed expert."""
        return self.mlp_matrices * self.hidden * self.expert_intermediate

    @property
    def shared_expert_parameters(self) -> int:
        """Elements of the shared expert of one MoE layer."""
        return self.mlp_matrices * self.hidden * self.shared_intermediate

    @property
    def router_parameters(self) -> int:
        """Elements of the router of one MoE layer."""
        return self.hidden * self.experts

    @property
    def norm_parameters(self) -> int:
        """Elements of all norms on the residual stream: two a layer and the last one."""
        return (2 * self.layers + 1) * self.hidden * self.norms

    @property
    def embedding_parameters(self) -> int:
        """Elements of the token embedding."""
        return self.vocabulary * self.hidden

    @property
    def head_parameters(self) -> int:
        """Elements that the language-model head adds: 0 when it shares the embedding."""
        return 0 if self.tied_embeddings else self.vocabulary * self.hidden

    @property
    def expert_parameters_total(self) -> int:
        """Elements of all routed experts of all layers: what expert parallelism splits."""
        return self.moe_layers * self.experts * self.expert_parameters

    @property
    def dense_parameters(self) -> int:
        """Elements of everything but the routed experts, embedding and language-model head included."""
        return self.parameters - self.expert_parameters_total

    @property
    def parameters(self) -> int:
        """Elements of the whole language model. [PF]: |pi| = L (4 d^2 + 2 d d_ff) + V d."""
        return self.parameters_with_head("logits")

    @property
    def active_parameters(self) -> int:
        """Elements that one token touches, embedding and head included, as publishers count "A3B"."""
        idle = self.moe_layers * (self.experts - self.experts_per_token) * self.expert_parameters
        return self.parameters - idle

    def parameters_with_head(self, head: str) -> int:
        """Return the elements of the model under another head: "scalar" is one row without bias, "none" no row."""
        return self._trunk_parameters + _choose(head, self.head_parameters, self.hidden, 0)

    @property
    def _trunk_parameters(self) -> int:
        dense = self.dense_layers * self.dense_mlp_parameters
        mixture = self.moe_layers * (self.router_parameters + self.shared_expert_parameters)
        layers = self.layers * self.attention_parameters + dense + mixture + self.expert_parameters_total
        return layers + self.norm_parameters + self.embedding_parameters

    # FLOPs. A multiply-add is two; norms, biases, rotary positions and softmax are element-wise and not counted.

    @property
    def linear_flops_per_token(self) -> int:
        """Forward FLOPs of one token in the matrices of all layers, without attention scores and head."""
        routed = self.experts_per_token * self.expert_parameters
        mixture = self.moe_layers * (routed + self.shared_expert_parameters + self.router_parameters)
        dense = self.dense_layers * self.dense_mlp_matrix_parameters
        return 2 * (self.layers * self.attention_matrix_parameters + dense + mixture)

    def attention_flops_per_token(self, context: float) -> float:
        """Return the forward FLOPs of one token against `context` attended positions, scores and values, all layers."""
        return 4.0 * self.layers * self.heads * self.head_dim * context

    def head_flops_per_token(self, head: str = "logits") -> int:
        """Return the forward FLOPs of the head for one position. [PF]: 2 V d, or 2 d for a reward or critic head."""
        return 2 * self.hidden * _choose(head, self.vocabulary, 1, 0)

    def forward_flops(
        self, tokens: float, mean_context: float, head: str = "logits", head_tokens: float | None = None
    ) -> float:
        """Return the FLOPs of a forward pass over `tokens` tokens.

        `mean_context` is the mean number of attended positions: (m + 1) / 2 for a causal sequence of m tokens, which
        [PF] rounds to m / 2. The head runs on `head_tokens` positions (all when None): one per sequence in a prefill
        or for a reward. Source: [PF], C_f = 2 L [4 d^2 + 2 d d_ff + (S + T) d] + 2 V d per token.
        """
        positions = tokens if head_tokens is None else head_tokens
        per_token = self.linear_flops_per_token + self.attention_flops_per_token(mean_context)
        return tokens * per_token + positions * self.head_flops_per_token(head)

    def training_flops(self, tokens: float, mean_context: float, head: str = "logits") -> float:
        """Return forward plus backward FLOPs without recompute: the model FLOPs of MFU. [PF]: C_tr = 3 C_f."""
        return 3.0 * self.forward_flops(tokens, mean_context, head)

    def prefill_flops(self, prompt_tokens: float) -> float:
        """Return the FLOPs to read one prompt of S tokens. [PF]: 2 L S (4 d^2 + 2 d d_ff + S d) + 2 V d."""
        return self.forward_flops(prompt_tokens, prompt_tokens / 2, head_tokens=1)

    def decode_flops(self, prompt_tokens: float, response_tokens: float) -> float:
        """Return the FLOPs to write the T - 1 response tokens after the first, which the prefill yields.

        Source: [PF], sum over t = 1 .. T-1 of 2 L (4 d^2 + 2 d d_ff + 2 (S + t) d) + 2 V d, in closed form.
        """
        steps = max(response_tokens - 1, 0)
        return self.forward_flops(steps, prompt_tokens + (steps + 1) / 2)

    # Memory of a token.

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of keys and values of one position, all layers. [PF]: 2 L d with multi-head attention."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, element_bytes: float = 2.0) -> float:
        """Return the bytes of keys and values of one position in all layers."""
        return self.kv_elements_per_token * element_bytes

    def activation_elements(self, tokens: float) -> float:
        """Return the elements of the residual stream at every layer boundary. [PF]: B (S + T) L d."""
        return tokens * self.layers * self.hidden


def paper_reference(layers: int, hidden: int, intermediate: int, heads: int, vocabulary: int) -> Architecture:
    """Return the model of [PF]: multi-head attention, two-matrix MLP, tied embeddings, no biases and no norm weights.

    Raises ArchitectureError if `heads` does not divide `hidden`.
    """
    if heads < 1 or hidden % heads:
        raise ArchitectureError("heads", f"heads must divide hidden: {hidden} / {heads}")
    return Architecture(
        name="paper-reference",
        family="paper-reference",
        hidden=hidden,
        layers=layers,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        mlp_matrices=2,
        dense_layers=layers,
        tied_embeddings=True,
        qk_norm=False,
        qkv_bias=False,
        output_bias=False,
        max_positions=1 << 20,
        norms=False,
    )


def adam_state_elements(parameters: float, zero: int = 0, shards: int = 1) -> float:
    """Return the elements a rank holds of weights, gradients and both Adam moments under a ZeRO stage.

    [PF] with P parameters on P_z shards: 4 P without ZeRO, P + 3 P / P_z for ZeRO-2, 4 P / P_z for ZeRO-3 (gather
    buffers apart). ZeRO-1 from its definition, Rajbhandari et al., arXiv 1910.02054: 2 P + 2 P / P_z.
    Raises InputError for another stage or fewer than one shard.
    """
    if zero not in (0, 1, 2, 3) or shards < 1:
        raise InputError(f"a ZeRO stage is 0, 1, 2 or 3 on at least one shard: got stage {zero} on {shards} shards")
    whole = {0: 4, 1: 2, 2: 1, 3: 0}[zero]
    return parameters * (whole + (4 - whole) / shards)


def _choose(head: str, logits: int, scalar: int, none: int) -> int:
    if head not in HEADS:
        raise InputError(f"unknown head `{head}`", hint=guess(head, HEADS))
    return {"logits": logits, "scalar": scalar, "none": none}[head]


_Rule = tuple[str, str, Callable[[Architecture], bool]]

_RULES: tuple[_Rule, ...] = (
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
        lambda a: 0 <= a.dense_layers <= a.layers,
    ),
    (
        "intermediate",
        "dense layers need an intermediate of at least 1: {a.dense_layers} layers, intermediate {a.intermediate}",
        lambda a: a.intermediate >= (1 if a.dense_layers else 0),
    ),
    (
        "experts_per_token",
        "MoE layers need 1 <= experts_per_token <= experts: {a.experts_per_token} of {a.experts}",
        lambda a: a.dense_layers == a.layers or 1 <= a.experts_per_token <= a.experts,
    ),
    (
        "expert_intermediate",
        "MoE layers need an expert_intermediate of at least 1: {a.expert_intermediate}",
        lambda a: a.dense_layers == a.layers or a.expert_intermediate >= 1,
    ),
    (
        "shared_intermediate",
        "shared_intermediate must not be negative: {a.shared_intermediate}",
        lambda a: a.shared_intermediate >= 0,
    ),
)
