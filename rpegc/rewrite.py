"""What a pass is, and how passes run: verify, apply, verify, record.

A pass is a frozen dataclass: a kebab-case `name`, its semantics class, its options as fields, its law in the
docstring. It never mutates and never prices: graph in, alternatives out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rpegc.errors import InputError, RpegcError
from rpegc.ir.graph import Graph, Scalar
from rpegc.target import Capabilities

SEMANTICS = ("exact", "stale", "model")
"""`exact`: same samples, weights, membership and denominators of every optimizer update. `stale`: older weights,
bounded. `model`: another model, estimator or sample selection."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What passes and rules may know of a role's model: its sizes, and the adapter rank it is trained with (0: none).

    `like` names the role whose weights this role starts from ("" if it has its own). `recurrent_layers` carry a state
    along the sequence, `sink_layers` have a learned softmax offset per head: both restrict how a sequence may be split.
    """

    role: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    experts: int
    max_positions: int
    like: str = ""
    lora_rank: int = 0
    recurrent_layers: int = 0
    sink_layers: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """The step's counts and lengths in tokens; one optimizer update takes `sequences_per_update` sequences."""

    prompts_per_step: int
    samples_per_prompt: int
    minibatches_per_step: int
    epochs_per_batch: int
    max_prompt_tokens: int
    max_response_tokens: int
    mean_prompt_tokens: float
    mean_response_tokens: float
    kl_coefficient: float
    kl_where: str  # "loss" | "reward" | "none"
    importance_correction: bool = False

    @property
    def sequences_per_step(self) -> int:
        """Sequences of one RL step."""
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def sequences_per_update(self) -> int:
        """Sequences of one optimizer update."""
        return self.sequences_per_step // self.minibatches_per_step

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates of one RL step."""
        return self.minibatches_per_step * self.epochs_per_batch

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt plus longest response."""
        return self.max_prompt_tokens + self.max_response_tokens


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the user permits beyond `exact`: a staleness bound, `model` rewrites by name, the least gain worth it."""

    max_staleness: int = 0
    partial_rollout: bool = False
    model_changes: frozenset[str] = frozenset()
    minimum_gain: float = 0.05


@dataclass(frozen=True, slots=True)
class Context:
    """All that a pass may look at. `space` maps (op, field) to the values that the search space lists.

    With `pools` the cluster has two kinds of machine, for what generates and for the rest: no mesh spans both.
    """

    models: Mapping[str, ModelFacts]
    workload: WorkloadFacts
    allow: Allowance
    space: Mapping[tuple[str, str], tuple[Scalar, ...]]
    capabilities: Capabilities
    pools: bool = False


class PassFault(RpegcError):
    """A pass built an illegal graph: our fault, although the verifier's words are those for a user's graph."""


class Pass(Protocol):
    """A rewrite of the graph; one alternative is a plain rewrite, the unchanged graph means that it did not fire."""

    name: ClassVar[str]
    semantics: ClassVar[str]

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graphs this pass makes of one graph."""
        ...


def run_passes(
    passes: Sequence[Pass], graph: Graph, context: Context, verify: Callable[[Graph], None]
) -> tuple[Graph, ...]:
    """Run a pipeline of passes; each sees every variant so far, each result is verified, equal variants merge.

    Of the combinations of rewrites that change the model, only some are kept: see `_few_model_changes`.
    Raises `InputError` as `verify` does for an illegal graph, and `PassFault` if a pass makes one out of a legal one.
    """
    verify(graph)
    variants: tuple[Graph, ...] = (graph,)
    for rewrite in passes:
        produced: dict[Graph, None] = {}
        for variant in variants:
            for alternative in rewrite.alternatives(variant, context):
                if alternative is not variant:
                    _verify_result(rewrite, alternative, verify)
                produced[alternative] = None
        variants = _few_model_changes(tuple(produced))
    return variants


def _few_model_changes(variants: tuple[Graph, ...]) -> tuple[Graph, ...]:
    """Keep the variants with no change of the model, with one, and with the most: n + 2 combinations, not 2^n.

    Each change alone says what it gains; all together is what a user who allows them all may want.
    """
    counts = [sum(rewrite.semantics == "model" for rewrite in variant.rewrites) for variant in variants]
    most = max(counts, default=0)
    return tuple(variant for variant, count in zip(variants, counts, strict=True) if count <= 1 or count == most)


def _verify_result(rewrite: Pass, graph: Graph, verify: Callable[[Graph], None]) -> None:
    try:
        verify(graph)
    except InputError as error:
        raise PassFault(f"pass {rewrite.name} built an illegal graph: {error.message}") from error
