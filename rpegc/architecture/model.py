"""The shape of a model and what follows from it: parameters, FLOPs, cache and state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import gcd

from rpegc.architecture.mixers import Attention, Mixer, ScoreMixer
from rpegc.architecture.rules import RULES, ArchitectureError
from rpegc.errors import InputError, guess

HEADS = ("logits", "scalar", "none")
"""What stands on top of the layers: a language-model head, one number (critic, reward model), or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of one decoder-only transformer.

    `hidden` is d of [PF], `vocabulary` V, `layers` L, `intermediate` d_ff. `mlp_matrices` is 3 for a gated MLP (gate,
    up, down) and 2 for a plain one. `dense_layers` layers have a dense MLP of width `intermediate`, `bare_layers` have
    none; the others have `experts` of width `expert_intermediate`, of which each token visits `experts_per_token`, plus
    shared experts of `shared_intermediate` channels. `qkv_bias` and `output_bias` are those of attention. `norms` is
    False only for `paper_reference`, since [PF] counts no norm weights.

    `own_mixers` are the layers by what mixes tokens in them; where empty, all are attention of `heads`, `kv_heads` and
    `head_dim`. `expert_hidden` is the width that experts work on, between two projections, where it is not `hidden`
    (0). `shared_gate`, `router_bias`, `expert_bias`: weights beside those matrices. `layer_norms` counts the norms of
    the residual stream per layer, with a bias each if `norm_bias`. `other_parameters` are elements that belong to none
    of these. `active_tables`: how many of embedding and head its publisher counts as active (1: the head). `left_out`
    says, in words, what a published model has beyond what is priced.

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
    own_mixers: tuple[Mixer, ...] = ()
    bare_layers: int = 0
    expert_hidden: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    layer_norms: int = 2
    norm_bias: bool = False
    other_parameters: int = 0
    active_tables: int = 2
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field, rule, holds in RULES:
            if not holds(self):
                raise ArchitectureError(field, rule.format(a=self))

    # Layers by kind.

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixers, each with the number of its layers."""
        return self.own_mixers or (self._plain_attention(),)

    @property
    def score_mixers(self) -> tuple[ScoreMixer, ...]:
        """The mixers that score tokens against a cache."""
        return tuple(mixer for mixer in self.mixers if isinstance(mixer, ScoreMixer))

    @property
    def mixer_layers(self) -> int:
        """Layers that mix tokens at all."""
        return sum(mixer.layers for mixer in self.mixers)

    @property
    def recurrent_layers(self) -> int:
        """Layers whose tokens depend on a running state: a sequence must pass through them in one piece."""
        return sum(mixer.layers for mixer in self.mixers if mixer.parallel_heads)

    @property
    def recurrent_heads(self) -> int:
        """What tensor parallelism must divide besides attention heads; 0 without recurrent layers."""
        return reduce(gcd, (mixer.parallel_heads for mixer in self.mixers if mixer.parallel_heads), 0)

    @property
    def sink_layers(self) -> int:
        """Layers of attention with a learned softmax offset per head."""
        return sum(mixer.layers for mixer in self.mixers if isinstance(mixer, Attention) and mixer.sinks)

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return self.layers - self.dense_layers - self.bare_layers

    def _plain_attention(self) -> Attention:
        return Attention(
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            qkv_bias=self.qkv_bias,
            output_bias=self.output_bias,
            norm_elements=2 * self.head_dim * self.qk_norm,
        )

    # Parameters, in elements.

    @property
    def mixer_parameters(self) -> int:
        """Elements of the mixers of all layers: matrices, biases, norms, convolutions."""
        return sum(mixer.layers * mixer.parameters(self.hidden) for mixer in self.mixers)

    @property
    def mixer_matrix_parameters(self) -> int:
        """Elements of the matrices of the mixers of all layers."""
        return sum(mixer.layers * mixer.matrix_parameters(self.hidden) for mixer in self.mixers)

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
    def expert_depth(self) -> int:
        """Width of what an expert reads and writes."""
        return self.expert_hidden or self.hidden

    @property
    def expert_parameters(self) -> int:
        """Elements of one routed expert."""
        biases = (self.mlp_matrices - 1) * self.expert_intermediate + self.expert_depth
        return self.mlp_matrices * self.expert_depth * self.expert_intermediate + biases * self.expert_bias

    @property
    def shared_expert_parameters(self) -> int:
        """Elements of the shared expert of one MoE layer, with the projections around latent experts."""
        shared = self.mlp_matrices * self.hidden * self.shared_intermediate
        return shared + 2 * self.hidden * self.expert_hidden + self.hidden * self.shared_gate

    @property
    def router_parameters(self) -> int:
        """Elements of the router of one MoE layer."""
        return self.hidden * self.experts + self.experts * self.router_bias

    @property
    def norm_parameters(self) -> int:
        """Elements of all norms on the residual stream: those of the layers (two each as a rule) and the last one."""
        return (self.layer_norms * self.layers + 1) * self.hidden * self.norms * (1 + self.norm_bias)

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
        """Elements that one token touches, as its publisher counts "A3B": with both tables, the head alone or none."""
        idle = self.moe_layers * (self.experts - self.experts_per_token) * self.expert_parameters
        tables = (2 - self.active_tables) * self.embedding_parameters
        if self.tied_embeddings:
            tables = 0 if self.active_tables else self.embedding_parameters
        return self.parameters - idle - tables

    def parameters_with_head(self, head: str) -> int:
        """Return the elements of the model under another head: "scalar" is one row without bias, "none" no row."""
        return self._trunk_parameters + _choose(head, self.head_parameters, self.hidden, 0)

    @property
    def _trunk_parameters(self) -> int:
        dense = self.dense_layers * self.dense_mlp_parameters
        mixture = self.moe_layers * (self.router_parameters + self.shared_expert_parameters)
        layers = self.mixer_parameters + dense + mixture + self.expert_parameters_total
        return layers + self.norm_parameters + self.embedding_parameters + self.other_parameters

    # FLOPs. A multiply-add is two; norms, biases, rotary positions and softmax are element-wise and not counted.

    @property
    def linear_flops_per_token(self) -> int:
        """Forward FLOPs of one token in all layers whatever the context: matrices, recurrences, convolutions."""
        routed = self.experts_per_token * self.mlp_matrices * self.expert_depth * self.expert_intermediate
        router = self.hidden * self.experts
        mixture = self.moe_layers * (routed + self.shared_expert_parameters + router)
        dense = self.dense_layers * self.dense_mlp_matrix_parameters
        scans = sum(mixer.layers * mixer.scan_flops for mixer in self.mixers)
        return 2 * (self.mixer_matrix_parameters + dense + mixture) + scans

    def attention_flops_per_token(self, context: float) -> float:
        """Return the forward FLOPs of one token at position `context`: scores and values of all layers."""
        return self._score_flops(lambda mixer: mixer.attended(context))

    def _score_flops(self, attended: Callable[[ScoreMixer], float]) -> float:
        total = 0.0
        for mixer in self.score_mixers:
            total += 4.0 * mixer.layers * mixer.heads * mixer.score_width * attended(mixer)
        return total

    def head_flops_per_token(self, head: str = "logits") -> int:
        """Return the forward FLOPs of the head for one position. [PF]: 2 V d, or 2 d for a reward or critic head."""
        return 2 * self.hidden * _choose(head, self.vocabulary, 1, 0)

    def forward_flops(
        self, tokens: float, mean_context: float, head: str = "logits", head_tokens: float | None = None
    ) -> float:
        """Return the FLOPs of a forward pass over `tokens` tokens.

        `mean_context` is the mean number of earlier positions: (m + 1) / 2 for a causal sequence of m tokens, which
        [PF] rounds to m / 2; windows leave fewer. The head runs on `head_tokens` positions (all when None): one per
        sequence in a prefill or for a reward. Source: [PF], C_f = 2 L [4 d^2 + 2 d d_ff + (S + T) d] + 2 V d per token.
        """
        positions = tokens if head_tokens is None else head_tokens
        per_token = self.linear_flops_per_token + self._score_flops(lambda mixer: mixer.attended_in_pass(mean_context))
        return tokens * per_token + positions * self.head_flops_per_token(head)

    def training_flops(self, tokens: float, mean_context: float, head: str = "logits") -> float:
        """Return forward plus backward FLOPs without recompute: the model FLOPs of MFU. [PF]: C_tr = 3 C_f."""
        return 3.0 * self.forward_flops(tokens, mean_context, head)

    def prefill_flops(self, prompt_tokens: float) -> float:
        """Return the FLOPs to read one prompt of S tokens. [PF]: 2 L S (4 d^2 + 2 d d_ff + S d) + 2 V d."""
        return self.forward_flops(prompt_tokens, prompt_tokens / 2, head_tokens=1)

    def prefill_score_flops(self, mean_tokens: float, squared_tokens: float) -> float:
        """Return the FLOPs of scores and values of one prompt: mean length, mean square; 2 h d s^2 without a window."""
        total = 0.0
        for mixer in self.score_mixers:
            seen = mixer.attended_in_pass(squared_tokens / mean_tokens / 2)
            pairs = mean_tokens * seen if mixer.reach else squared_tokens / 2
            total += 4.0 * mixer.layers * mixer.heads * mixer.score_width * pairs
        return total

    def decode_flops(self, prompt_tokens: float, response_tokens: float) -> float:
        """Return the FLOPs to write the T - 1 response tokens after the first, which the prefill yields.

        Source: [PF], sum over t = 1 .. T-1 of 2 L (4 d^2 + 2 d d_ff + 2 (S + t) d) + 2 V d, in closed form.
        """
        steps = max(response_tokens - 1, 0)
        scores = self._score_flops(lambda mixer: mixer.attended_in_decode(prompt_tokens, steps))
        return steps * (self.linear_flops_per_token + scores) + steps * self.head_flops_per_token()

    # Memory of a token.

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that one position leaves in the caches of all layers. [PF]: 2 L d with multi-head attention."""
        return sum(mixer.layers * mixer.cache_elements for mixer in self.score_mixers)

    def kv_bytes_per_token(self, element_bytes: float = 2.0) -> float:
        """Return the bytes of keys and values of one position in all layers."""
        return self.kv_elements_per_token * element_bytes

    @property
    def uniform_cache(self) -> bool:
        """Whether every position of a sequence takes the same memory on the same ranks, and nothing else does."""
        kinds = {(mixer.reach, mixer.cache_heads) for mixer in self.score_mixers}
        return len(kinds) == 1 and not self.recurrent_layers and not self.score_mixers[0].reach

    def sequence_bytes_per_rank(self, tokens: float, tp: int, element_bytes: float = 2.0) -> float:
        """Return the bytes that a sequence of `tokens` tokens keeps on one of `tp` ranks: caches and states."""
        total = 0.0
        for mixer in self.score_mixers:
            share = min(tp, mixer.cache_heads)
            total += mixer.layers * mixer.cache_elements * element_bytes * mixer.cached(tokens) / share
        return total + self.state_bytes / tp

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent state that one sequence keeps, whatever its length."""
        return sum(mixer.layers * mixer.state_bytes for mixer in self.mixers)

    def activation_elements(self, tokens: float) -> float:
        """Return the elements of the residual stream at every layer boundary. [PF]: B (S + T) L d."""
        return tokens * self.layers * self.hidden


def _choose(head: str, logits: int, scalar: int, none: int) -> int:
    if head not in HEADS:
        raise InputError(f"unknown head `{head}`", hint=guess(head, HEADS))
    return {"logits": logits, "scalar": scalar, "none": none}[head]
