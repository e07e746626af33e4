"""One micro-batch through one layer, as named terms: what it computes and exchanges, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpegc.cost import exchange, layer
from rpegc.cost.constants import PRETRAINING
from rpegc.cost.step_shape import StepShape
from rpegc.target import FloatArray


@dataclass(frozen=True, slots=True)
class LayerTerm:
    """Seconds of one cause in one layer and micro-batch: exposed ones in either direction, and hidden ones."""

    name: str
    forward: FloatArray
    backward: FloatArray
    forward_hidden: FloatArray
    backward_hidden: FloatArray
    provenance: str
    source: str

    @property
    def seconds(self) -> FloatArray:
        """Exposed seconds of both directions."""
        return self.forward + self.backward

    @property
    def hidden_seconds(self) -> FloatArray:
        """Hidden seconds of both directions."""
        return self.forward_hidden + self.backward_hidden


def layer_terms(shape: StepShape) -> tuple[LayerTerm, ...]:
    """Return all terms of a layer; the slowest pipeline stage runs them `stage_layers` times per micro-batch."""
    attention = layer.attention(shape)
    terms = [
        _computed("gemm", layer.gemm(shape), "2 m n k at the GPU's GEMM curve; " + PRETRAINING),
        _computed("attention", attention, "4 h d FLOP per token and attended position; " + PRETRAINING),
        _computed("elementwise", layer.elementwise(shape), "bytes per token over HBM bandwidth; " + PRETRAINING),
    ]
    if shape.architecture.recurrent_layers:
        share = shape.constants.recurrence_share
        terms.append(_computed("recurrence", layer.recurrence(shape), share.source, share.provenance))
    if shape.work.engine_flags & {"fp8", "fp8_rowwise", "nvfp4"}:
        terms.append(_computed("casts", layer.casts(shape), "casts to FP8; " + PRETRAINING))
    if shape.work.lora_rank:
        terms.append(_computed("adapters", layer.adapters(shape), "adapter traffic; " + PRETRAINING))
    if shape.architecture.experts:
        source = "one product for each expert in a grouped kernel; " + PRETRAINING
        terms.append(_computed("experts", layer.experts(shape), source))
        terms.append(_computed("routing", layer.routing(shape), "permutation and fixed time; " + PRETRAINING))
    attention_s = attention[0] + attention[1]
    covered = 1.0 if shape.work.lora_rank else shape.constants.tensor_backward.value
    for name, exchanged, backward, remaining in (
        ("tensor_parallel", exchange.tensor_parallel(shape), 1.0, covered),
        ("context_parallel", exchange.context_parallel(shape, attention_s), 2.0, 1.0),
        ("ulysses", exchange.ulysses(shape), 1.0, 1.0),
        ("expert_parallel", exchange.expert_parallel(shape), 1.0, 1.0),
    ):
        if np.any(exchanged[0] > 0):
            terms.append(_exchanged(shape, name, exchanged, backward, remaining))
    return tuple(terms)


def recomputed(shape: StepShape, terms: tuple[LayerTerm, ...]) -> FloatArray:
    """Return seconds per layer and micro-batch of recomputation: a whole forward pass, or what `selective` repeats."""
    selective = dict(shape.constants.selective_recompute)
    whole = np.zeros(shape.rows)
    part = np.zeros(shape.rows)
    for term in terms:
        whole += term.forward
        part += selective.get(term.name, 0.0) * term.forward
    return np.where(shape.recompute_full, whole, np.where(shape.recompute_selective, part, 0.0))


def _computed(name: str, seconds: layer.Seconds, source: str, provenance: str = "fitted") -> LayerTerm:
    zero = np.zeros(len(seconds[0]))
    return LayerTerm(name, seconds[0], np.broadcast_to(seconds[1], zero.shape), zero, zero, provenance, source)


def _exchanged(
    shape: StepShape, name: str, exchanged: exchange.Exchange, backward: float, remaining: float
) -> LayerTerm:
    """Return an exchange that the backward pass repeats `backward` times, `remaining` of its exposed share exposed."""
    wire, exposed = exchanged
    again = backward * shape.training
    source = "collective curves of the machine; exposed share " + PRETRAINING
    late = remaining * exposed
    return LayerTerm(name, exposed, again * late, wire - exposed, again * (wire - late), "fitted", source)
