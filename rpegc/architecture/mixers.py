"""What mixes tokens in a layer, one class a kind: attention, latent attention, gated delta rule, state space.

A mixer knows its matrices, its cache and its FLOPs per token; `Architecture` adds them up over the layers, and
`rpegc.cost` prices them by kind. A layer without a mixer is a feed-forward layer alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import gcd
from typing import ClassVar, NamedTuple

RECURRENT_STATE_BYTES = 4
"""Bytes of one state element: engines keep recurrent states in FP32 (`mamba_ssm_dtype` of published models)."""

CONVOLUTION_BYTES = 2
DELTA_CHUNK = 64
"""Tokens that one step of the chunked delta rule takes (flash-linear-attention, `chunk_gated_delta_rule`)."""


class Matrix(NamedTuple):
    """One matrix product of a layer: output width, input depth, and which of them tensor parallelism splits.

    `split` is "width", "depth", or "" for a matrix that every rank holds whole.
    """

    width: int
    depth: int
    split: str

    @property
    def elements(self) -> int:
        """Elements of the matrix."""
        return self.width * self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer(ABC):
    """What `layers` layers of one kind have in common; `hidden` is the width of the residual stream."""

    layers: int
    kind: ClassVar[str]

    @abstractmethod
    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Return the matrices as engines multiply them: query, key and value in one."""

    @abstractmethod
    def small_parameters(self, hidden: int) -> int:
        """Return the elements of one layer beside its matrices: biases, norms, convolutions."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """Elements per token that element-wise kernels move and that a backward pass needs."""

    def tensors(self, hidden: int) -> tuple[int, ...]:
        """Return the elements of each weight matrix as checkpoints hold them."""
        return tuple(matrix.elements for matrix in self.matrices(hidden))

    def matrix_parameters(self, hidden: int) -> int:
        """Return the elements of the matrices of one layer."""
        return sum(matrix.elements for matrix in self.matrices(hidden))

    def parameters(self, hidden: int) -> int:
        """Return all elements of one layer's mixer."""
        return self.matrix_parameters(hidden) + self.small_parameters(hidden)

    def adapter_width(self, hidden: int) -> int:
        """Return input plus output widths of all linear modules: the elements of a rank-1 adapter."""
        return sum(matrix.width + matrix.depth for matrix in self.matrices(hidden))

    @property
    def scan_flops(self) -> int:
        """FLOPs per token of a recurrence and its convolution; 0 for attention."""
        return 0

    @property
    def state_bytes(self) -> int:
        """Bytes of state that one sequence keeps in one layer, whatever its length; 0 for attention."""
        return 0

    @property
    def parallel_heads(self) -> int:
        """Heads (or groups of heads) of a recurrence that tensor parallelism must divide; 0 for attention."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMixer(Mixer):
    """A mixer that scores tokens against a cache: all earlier ones, or those that `reach` and `chunked` leave.

    `reach` is a sliding window in tokens, or with `chunked` the length of the blocks inside which tokens see each
    other; 0 is no limit.
    """

    heads: int
    reach: int = 0
    chunked: bool = False

    @property
    @abstractmethod
    def score_width(self) -> float:
        """Mean of the query-key and the value width of a head: scores and values cost 4 heads width a position."""

    @property
    @abstractmethod
    def score_heads(self) -> int:
        """Key and value heads of the attention kernel."""

    @property
    @abstractmethod
    def cache_elements(self) -> int:
        """Elements that one token leaves in the cache of one layer."""

    @property
    @abstractmethod
    def cache_heads(self) -> int:
        """Most ranks over which tensor parallelism can split the cache."""

    def attended(self, context: float) -> float:
        """Return the positions that a token at position `context` attends to."""
        if not self.reach or context <= self.reach:
            return context
        return (self.reach + 1) / 2 if self.chunked else float(self.reach)

    def attended_in_pass(self, mean_context: float) -> float:
        """Return the mean attended positions of a causal sequence whose tokens see `mean_context` without a limit.

        Such a sequence has m = 2 `mean_context` tokens; a window w leaves w - w^2 / (2 m), blocks leave w / 2.
        """
        span = 2.0 * mean_context
        if not self.reach or span <= self.reach:
            return mean_context
        return self.reach / 2.0 if self.chunked else self.reach - self.reach * self.reach / (2.0 * span)

    def attended_in_decode(self, prompt: float, steps: float) -> float:
        """Return the mean attended positions of `steps` tokens that follow `prompt` tokens one by one."""
        mean, last = prompt + (steps + 1) / 2, prompt + steps
        if not self.reach or last <= self.reach:
            return mean
        beyond = min(last - self.reach, steps)
        before = steps - beyond
        inside = prompt + (before + 1) / 2
        return (before * inside + beyond * self.attended(last)) / steps

    def cached(self, tokens: float) -> float:
        """Return the tokens of a sequence of `tokens` tokens that stay in the cache."""
        return min(tokens, float(self.reach)) if self.reach else tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(ScoreMixer):
    """Grouped-query attention, over all earlier tokens, a window or a block.

    `qkv_bias` and `output_bias` are those of its projections, `norm_elements` the weights of query and key norms,
    `gated` doubles the query projection (Qwen3-Next), `shared_values` reads values from the key projection (Gemma 4),
    `sinks` adds one learned softmax offset a head (GPT-OSS). `value_dim` is `head_dim` when 0.
    """

    kind: ClassVar[str] = "attention"
    kv_heads: int
    head_dim: int
    value_dim: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    norm_elements: int = 0
    gated: bool = False
    shared_values: bool = False
    sinks: bool = False

    def _widths(self) -> tuple[int, ...]:
        """Return the outputs of the input projections: query (and its gate), key, value."""
        values = () if self.shared_values else (self.kv_heads * (self.value_dim or self.head_dim),)
        return (self.heads * self.head_dim * (2 if self.gated else 1), self.kv_heads * self.head_dim, *values)

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Return the projections of query, key and value in one, and that of the output."""
        inner = self.heads * (self.value_dim or self.head_dim)
        return Matrix(sum(self._widths()), hidden, "width"), Matrix(hidden, inner, "depth")

    def tensors(self, hidden: int) -> tuple[int, ...]:
        """Return the projections one by one."""
        inner = self.heads * (self.value_dim or self.head_dim)
        return (*(width * hidden for width in self._widths()), hidden * inner)

    def adapter_width(self, hidden: int) -> int:
        """Return input plus output widths of the separate projections."""
        inner = self.heads * (self.value_dim or self.head_dim)
        return sum(hidden + width for width in self._widths()) + hidden + inner

    def small_parameters(self, hidden: int) -> int:
        """Return biases, query and key norms, softmax offsets."""
        biases = sum(self._widths()) * self.qkv_bias + hidden * self.output_bias
        return biases + self.norm_elements + self.heads * self.sinks

    @property
    def channels(self) -> int:
        """Query, key, value and output, and the gate."""
        return (2 * (self.heads + self.kv_heads) + self.heads * self.gated) * self.head_dim

    @property
    def score_width(self) -> float:
        """Mean of the query-key and the value width of a head."""
        return (self.head_dim + self.value_dim) / 2 if self.value_dim else self.head_dim

    @property
    def score_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads

    @property
    def cache_elements(self) -> int:
        """Keys and values."""
        return self.kv_heads * (self.head_dim + (self.value_dim or self.head_dim))

    @property
    def cache_heads(self) -> int:
        """Key and value heads: beyond them, ranks hold copies."""
        return self.kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(ScoreMixer):
    """Multi-head latent attention: keys and values are projected from `kv_rank` elements a token, which are cached.

    `query_rank` 0 projects queries directly. Heads have `nope_dim` + `rope_dim` query-key and `value_dim` value
    elements. `bias` is that of the two down-projections and the output.
    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1; `modeling_deepseek_v3.py` of Transformers.
    """

    kind: ClassVar[str] = "latent_attention"
    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    bias: bool = False

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Return down-projections (whole on every rank), up-projections and the output's."""
        queries = self.heads * (self.nope_dim + self.rope_dim)
        down = Matrix(self.kv_rank + self.rope_dim, hidden, "")
        up = Matrix(self.heads * (self.nope_dim + self.value_dim), self.kv_rank, "width")
        out = Matrix(hidden, self.heads * self.value_dim, "depth")
        if not self.query_rank:
            return Matrix(queries, hidden, "width"), down, up, out
        return Matrix(self.query_rank, hidden, ""), Matrix(queries, self.query_rank, "width"), down, up, out

    def small_parameters(self, hidden: int) -> int:
        """Return the norms of both latents, and biases."""
        biases = self.query_rank + self.kv_rank + self.rope_dim + hidden
        return self.query_rank + self.kv_rank + biases * self.bias

    @property
    def channels(self) -> int:
        """Latents, and queries, keys, values and outputs of all heads."""
        return self.query_rank + self.kv_rank + 2 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    @property
    def score_width(self) -> float:
        """Mean of the query-key and the value width of a head."""
        return (self.nope_dim + self.rope_dim + self.value_dim) / 2

    @property
    def score_heads(self) -> int:
        """Every head has keys and values of its own once they are projected up."""
        return self.heads

    @property
    def cache_elements(self) -> int:
        """The latent and one rotary key, shared by all heads."""
        return self.kv_rank + self.rope_dim

    @property
    def cache_heads(self) -> int:
        """Every rank needs the whole latent."""
        return 1

    @property
    def absorbed_width(self) -> float:
        """Width of a head when decoding scores the latent itself: half of 2 `kv_rank` + `rope_dim`."""
        return (2 * self.kv_rank + self.rope_dim) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta(Mixer):
    """Linear attention by the gated delta rule, with a short convolution before and a gated norm behind.

    Source: Yang et al., arXiv 2412.06464; `Qwen3NextGatedDeltaNet` of Transformers.
    """

    kind: ClassVar[str] = "linear_attention"
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def _mixed(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Return the projections of query, key, value, gate, decay and step in one, and that of the output."""
        inner = self.value_heads * self.value_dim
        return (
            Matrix(self._mixed + inner + 2 * self.value_heads, hidden, "width"),
            Matrix(hidden, inner, "depth"),
        )

    def small_parameters(self, hidden: int) -> int:
        """Return convolution, decay and step biases, norm."""
        return self._mixed * self.kernel + 2 * self.value_heads + self.value_dim

    @property
    def channels(self) -> int:
        """Convolution in and out, gate, output and norm, and one state a chunk."""
        inner = self.value_heads * self.value_dim
        return 2 * self._mixed + 3 * inner + self.value_heads * self.key_dim * self.value_dim // DELTA_CHUNK

    @property
    def scan_flops(self) -> int:
        """Chunked delta rule of chunk C: heads (C (6 k + 4 v) + 6 k v), and the convolution."""
        inside = DELTA_CHUNK * (6 * self.key_dim + 4 * self.value_dim)
        return self.value_heads * (inside + 6 * self.key_dim * self.value_dim) + 2 * self._mixed * self.kernel

    @property
    def state_bytes(self) -> int:
        """One key by value matrix a head, and the last inputs of the convolution."""
        state = self.value_heads * self.key_dim * self.value_dim * RECURRENT_STATE_BYTES
        return state + self._mixed * (self.kernel - 1) * CONVOLUTION_BYTES

    @property
    def parallel_heads(self) -> int:
        """Key and value heads are split together."""
        return gcd(self.key_heads, self.value_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace(Mixer):
    """Mamba-2: one state of `head_dim` by `state` a head; `groups` of heads share their input and output maps.

    `bias` is that of both projections, `convolution_bias` that of the convolution.
    Source: Dao and Gu, arXiv 2405.21060; `Mamba2Mixer` and `NemotronHMamba2Mixer` of Transformers.
    """

    kind: ClassVar[str] = "state_space"
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    chunk: int
    bias: bool = False
    convolution_bias: bool = True

    @property
    def _inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def _mixed(self) -> int:
        return self._inner + 2 * self.groups * self.state

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Return the projections of gate, input, both maps and step in one, and that of the output."""
        return (
            Matrix(self._inner + self._mixed + self.heads, hidden, "width"),
            Matrix(hidden, self._inner, "depth"),
        )

    def small_parameters(self, hidden: int) -> int:
        """Return convolution, decay, skip and step biases, norm, biases of the projections."""
        biases = (self._inner + self._mixed + self.heads + hidden) * self.bias
        return self._mixed * (self.kernel + self.convolution_bias) + 3 * self.heads + self._inner + biases

    @property
    def channels(self) -> int:
        """Convolution in and out, gate, output and norm, and one state a chunk."""
        return 2 * self._mixed + 3 * self._inner + self._inner * self.state // self.chunk

    @property
    def scan_flops(self) -> int:
        """Structured state-space duality of chunk C: heads (4 n p + 2 C p) + groups 2 C n, and the convolution."""
        states = self.heads * (4 * self.state * self.head_dim + 2 * self.chunk * self.head_dim)
        return states + 2 * self.groups * self.chunk * self.state + 2 * self._mixed * self.kernel

    @property
    def state_bytes(self) -> int:
        """One state a head, and the last inputs of the convolution."""
        state = self._inner * self.state * RECURRENT_STATE_BYTES
        return state + self._mixed * (self.kernel - 1) * CONVOLUTION_BYTES

    @property
    def parallel_heads(self) -> int:
        """Heads are split by groups."""
        return gcd(self.heads, self.groups)


KINDS: dict[str, type[Mixer]] = {kind.kind: kind for kind in (Attention, LatentAttention, GatedDelta, StateSpace)}
