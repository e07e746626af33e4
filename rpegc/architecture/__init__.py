"""Transformer arithmetic: parameters, FLOPs, cache and state of a decoder-only model, from its shape alone.

With multi-head attention, a two-matrix MLP, tied embeddings and no norm weights (`paper_reference`) every figure equals
the closed forms of [PF] = "Performance Foundations of Parallel & Distributed Reasoning Language Models",
arXiv 2608.27046. Grouped queries, gated MLPs, experts, biases and norms generalise them; layers that are not plain
attention are in `mixers`.
"""

from rpegc.architecture.document import from_document, to_document
from rpegc.architecture.mixers import Attention, GatedDelta, LatentAttention, Matrix, Mixer, ScoreMixer, StateSpace
from rpegc.architecture.model import HEADS, Architecture
from rpegc.architecture.paper import adam_state_elements, paper_reference
from rpegc.architecture.rules import ArchitectureError

__all__ = [
    "HEADS",
    "Architecture",
    "ArchitectureError",
    "Attention",
    "GatedDelta",
    "LatentAttention",
    "Matrix",
    "Mixer",
    "ScoreMixer",
    "StateSpace",
    "adam_state_elements",
    "from_document",
    "paper_reference",
    "to_document",
]
