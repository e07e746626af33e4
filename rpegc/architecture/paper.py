"""The model of [PF] and its optimizer states.

[PF] = "Performance Foundations of Parallel & Distributed Reasoning Language Models", arXiv 2608.27046.
"""

from __future__ import annotations

from rpegc.architecture.model import Architecture
from rpegc.architecture.rules import ArchitectureError
from rpegc.errors import InputError


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
