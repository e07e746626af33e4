"""Work and depth, per stage and per RL step, as [PF] defines them: what parallelism can and cannot shorten.

Work counts operations; depth is the longest chain of operations that depend on each other. [PF] = "Performance
Foundations of Parallel & Distributed Reasoning Language Models", arXiv 2608.27046. Its model is a transformer with
multi-head attention and a two-matrix MLP; operations are FLOPs, memory is in elements (not bytes), logarithms are
base 2 and a depth is known up to a constant factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import networkx

from rpegc.ir.cycles import Number
from rpegc.ir.graph import Graph
from rpegc.ir.period import period


@dataclass(frozen=True, slots=True)
class PaperModel:
    """Sizes of [PF]'s transformer: L layers, d hidden, d_ff intermediate, h heads, V vocabulary.

    A mixture of experts has E `experts` of width d_e, E_a of them `active` for a token.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    experts: int = 0
    active: int = 0
    expert_intermediate: int = 0


@dataclass(frozen=True, slots=True)
class Degrees:
    """How many ways training is split: P_d data, P_t tensor, P_p pipeline, P_c context, P_e expert."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """One rank's share of a training pass: FLOPs, elements of memory, depth on the rank and of the whole pass."""

    work: float
    memory_elements: float
    rank_depth: float
    depth: float


@dataclass(frozen=True, slots=True)
class _Pass:
    """A training pass: the model, B sequences of m = S + T tokens, and the degrees of one scheme."""

    model: PaperModel
    batch: float
    tokens: float
    by: Degrees


def training_cost(scheme: str, model: PaperModel, batch: int, tokens: int, degrees: Degrees) -> TrainingCost:
    """Return the cost per rank of training on `batch` sequences of `tokens` tokens. [PF], Table 7.

    `scheme` is a key of `TRAINING_SCHEMES`; only the degrees that it names are used. Depth: only tensor parallelism
    shortens the chain through a layer, and a pipeline shortens a rank's chain but not that of the pass.
    """
    given = _Pass(model, batch, tokens, degrees)
    work, memory = TRAINING_SCHEMES[scheme]
    tensor = degrees.tensor if scheme in ("tp", "5d") else 1
    pipeline = degrees.pipeline if scheme in ("pp", "5d") else 1
    passes = 2 * forward_depth(model, tokens, tensor)
    reduction = math.log2(batch * tokens)
    return TrainingCost(work(given), memory(given), passes / pipeline + reduction, passes + reduction)


def forward_depth(model: PaperModel, tokens: int, tensor: int = 1) -> float:
    """Return the depth D_f of a forward pass over `tokens` tokens: L log(d^4 d_ff m / (P_t^2 h)). [PF], Table 7."""
    return model.layers * math.log2(model.hidden**4 * model.intermediate * tokens / (tensor**2 * model.heads))


def generation_depth(model: PaperModel, prompt: int, response: int, tensor: int = 1) -> float:
    """Return the depth of generating one response: D_f(S) + the sum of D_f(S + t) for t = 1 .. T - 1.

    No layout within a model removes the chain of tokens. [PF], generation stage.
    """
    return math.fsum(forward_depth(model, prompt + token, tensor) for token in range(response))


def _dense_work(p: _Pass, batch: float, tokens: float, layers: float) -> float:
    """6 B m L (4 d^2 + 2 d d_ff + span d); attention spans the whole sequence even where its tokens are split."""
    d = p.model.hidden
    return 6 * batch * tokens * layers * (4 * d**2 + 2 * d * p.model.intermediate + p.tokens * d)


def _dense_memory(p: _Pass, batch: float, tokens: float, layers: float) -> float:
    """L (16 d^2 + 8 d d_ff) + 4 V d + B m L d: weights, gradients and two moments, and one activation a layer."""
    d = p.model.hidden
    states = layers * (16 * d**2 + 8 * d * p.model.intermediate) + 4 * p.model.vocabulary * d
    return states + batch * tokens * layers * d


def _expert_work(p: _Pass) -> float:
    d, m = p.model.hidden, p.tokens
    experts = 2 * p.model.active * d * p.model.expert_intermediate / p.by.expert
    return 6 * p.batch * m * p.model.layers * (4 * d**2 + experts + m * d)


def _expert_memory(p: _Pass) -> float:
    d = p.model.hidden
    experts = 8 * p.model.experts * d * p.model.expert_intermediate / p.by.expert
    states = p.model.layers * (16 * d**2 + experts) + 4 * p.model.vocabulary * d
    return states + p.batch * p.tokens * p.model.layers * d


def _five_dimensional_work(p: _Pass) -> float:
    """Expert ranks share the batch here, so the experts' own term is not divided again."""
    d, by = p.model.hidden, p.by
    tokens = p.batch / (by.data * by.expert) * p.tokens / by.context
    layer = 4 * d**2 + 2 * p.model.active * d * p.model.expert_intermediate + p.tokens * d
    return 6 * tokens * p.model.layers / by.pipeline * layer / by.tensor


def _five_dimensional_memory(p: _Pass) -> float:
    d, by, layers = p.model.hidden, p.by, p.model.layers / p.by.pipeline
    experts = 8 * layers * p.model.experts * d * p.model.expert_intermediate / (by.tensor * by.expert)
    states = 16 * layers * d**2 / by.tensor + experts + 4 * p.model.vocabulary * d / by.tensor
    split = by.data * by.expert * by.context * by.tensor
    return states + p.batch * p.tokens * layers * d / split


TRAINING_SCHEMES: Mapping[str, tuple[Callable[[_Pass], float], Callable[[_Pass], float]]] = {
    "none": (
        lambda p: _dense_work(p, p.batch, p.tokens, p.model.layers),
        lambda p: _dense_memory(p, p.batch, p.tokens, p.model.layers),
    ),
    "dp": (
        lambda p: _dense_work(p, p.batch / p.by.data, p.tokens, p.model.layers),
        lambda p: _dense_memory(p, p.batch / p.by.data, p.tokens, p.model.layers),
    ),
    "pp": (
        lambda p: _dense_work(p, p.batch, p.tokens, p.model.layers / p.by.pipeline),
        lambda p: _dense_memory(p, p.batch, p.tokens, p.model.layers / p.by.pipeline),
    ),
    "tp": (
        lambda p: _dense_work(p, p.batch, p.tokens, p.model.layers) / p.by.tensor,
        lambda p: _dense_memory(p, p.batch, p.tokens, p.model.layers) / p.by.tensor,
    ),
    "cp": (
        lambda p: _dense_work(p, p.batch, p.tokens / p.by.context, p.model.layers),
        lambda p: _dense_memory(p, p.batch, p.tokens / p.by.context, p.model.layers),
    ),
    "ep": (_expert_work, _expert_memory),
    "5d": (_five_dimensional_work, _five_dimensional_memory),
}
"""Work and memory of one rank under each scheme. [PF], Table 7."""


StepDepth = Callable[[float, Sequence[float], Sequence[float]], float]

STEP_SCHEMES: Mapping[str, StepDepth] = {
    "co-located": lambda g, a, t: g + sum(a) + sum(t),
    "disaggregated": lambda g, a, t: g + max(a) + max(t),
    "stage fusion": lambda g, a, t: max(g, *a) + max(t),
    "asynchronous": lambda g, a, t: max(g + max(a), *t),
    "combined": lambda g, a, t: max(g, *t),
    "combined, conservative": lambda g, a, t: max(g, *a, *t),
    "hybrid": lambda g, a, t: g + sum(a) + sum(t),
}
"""Depth of a step from the depths of generation, of each assessment and of each training. [PF], Table 9.

For "combined" the depths are those of tensor-parallel generation and sharded training, for "hybrid" those of each
stage in its own layout; a step's reshard then costs memory and bandwidth, which depth does not count."""


@dataclass(frozen=True, slots=True)
class StepWorkDepth:
    """Work and depth of one RL step.

    `work` adds up; `serial_depth` is the chain with every stage after the other; `latency` the longest chain within
    one step; `depth` the steady state's depth per step, which staleness and exclusion decide; `chain` names the
    stages of the longest chain within a step.
    """

    work: Fraction
    serial_depth: Fraction
    latency: Fraction
    depth: Fraction
    chain: tuple[str, ...]


def step_work_depth(
    graph: Graph,
    stage_work: Mapping[str, Number],
    stage_depth: Mapping[str, Number],
    exclusive: Iterable[Sequence[str]] = (),
) -> StepWorkDepth:
    """Return work and depth of a step from those of its stages; `exclusive` lists groups that share devices.

    Without groups every stage has devices of its own, and `depth` is what the data dependences alone allow.
    """
    depths = {stage.name: Fraction(stage_depth[stage.name]) for stage in graph.stages}
    chain = _longest_chain(graph, depths)
    return StepWorkDepth(
        work=sum((Fraction(stage_work[stage.name]) for stage in graph.stages), Fraction(0)),
        serial_depth=sum(depths.values(), Fraction(0)),
        latency=sum((depths[name] for name in chain), Fraction(0)),
        depth=period(graph, depths, exclusive).period,
        chain=chain,
    )


def _longest_chain(graph: Graph, depths: Mapping[str, Fraction]) -> tuple[str, ...]:
    within: networkx.DiGraph[str] = networkx.DiGraph()
    within.add_nodes_from(stage.name for stage in graph.stages)
    within.add_edges_from((edge.source, edge.target) for edge in graph.edges if edge.distance == 0)
    chains: dict[str, tuple[str, ...]] = {}
    reach: dict[str, Fraction] = {}
    for name in networkx.topological_sort(within):
        before = max(within.predecessors(name), key=reach.__getitem__, default=None)
        reach[name] = depths[name] + (reach[before] if before is not None else 0)
        chains[name] = (*(chains[before] if before is not None else ()), name)
    return chains[max(reach, key=reach.__getitem__)]
