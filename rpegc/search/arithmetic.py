"""What holds for every target: degrees tile the mesh, heads and experts divide, the longest sequence fits.

The same rules filter tables and explain, with values, why a layout that a user asks for is impossible.
"""

from __future__ import annotations

import numpy as np

from rpegc.target import BoolArray, Columns, Rule

_SOURCE = "arithmetic"


def _bool(values: object) -> BoolArray:
    return np.asarray(values, dtype=bool)


def _ranks(c: Columns) -> np.ndarray:
    return np.asarray(c["cp"] * c["ulysses"] * c["tp"] * c["pp"])


def _experts_divide(c: Columns) -> BoolArray:
    return _bool((c["ep"] == 1) | ((c["experts"] > 0) & (c["experts"] % np.maximum(c["ep"], 1) == 0)))


def _count(c: Columns, name: str) -> np.ndarray:
    """Return a column of the model's layers by kind; 0 where a caller states none, as for plain attention."""
    return np.asarray(c.get(name, 0))


def _whole_sequences(c: Columns, name: str) -> BoolArray:
    return _bool((_count(c, name) == 0) | (c["cp"] * c["ulysses"] == 1))


def _recurrent_heads_divide(c: Columns) -> BoolArray:
    return _bool((_count(c, "recurrent_layers") == 0) | (_count(c, "recurrent_heads") % c["tp"] == 0))


RECURRENT_HEADS = Rule(
    "recurrent-heads-divide",
    "heads of linear attention and groups of state-space heads are split whole, with the keys that they share",
    "tp {tp} must divide the {recurrent_heads} heads (or groups) of the {recurrent_layers} linear-attention or "
    "state-space layers",
    _recurrent_heads_divide,
)

SHARDED_DEGREES: tuple[Rule, ...] = (
    Rule(
        "degrees-tile-the-mesh",
        _SOURCE,
        "cp {cp} x ulysses {ulysses} x tp {tp} x pp {pp} must divide the {gpus} GPUs of the mesh",
        lambda c: _bool(c["gpus"] % _ranks(c) == 0),
    ),
    Rule(
        "heads-divide",
        _SOURCE,
        "tp {tp} x ulysses {ulysses} must divide the {heads} attention heads of the model",
        lambda c: _bool(c["heads"] % (c["tp"] * c["ulysses"]) == 0),
    ),
    RECURRENT_HEADS,
    Rule(
        "recurrent-layers-hold-a-sequence",
        "a recurrence runs through a sequence from its first token to its last",
        "cp {cp} and ulysses {ulysses} must be 1: {recurrent_layers} layers are linear attention or state space, whose "
        "state passes along the sequence",
        lambda c: _whole_sequences(c, "recurrent_layers"),
    ),
    Rule(
        "softmax-offsets-stay-with-their-heads",
        "sinks are parameters of all heads in GptOssAttention of Transformers; no exchange of heads or keys takes them",
        "cp {cp} and ulysses {ulysses} must be 1: {sink_layers} layers have a learned softmax offset for each head",
        lambda c: _whole_sequences(c, "sink_layers"),
    ),
    Rule(
        "experts-divide",
        _SOURCE,
        "ep {ep} must divide the {experts} experts of the model",
        _experts_divide,
    ),
    Rule(
        "pipeline-has-layers",
        _SOURCE,
        "pp {pp} x vpp {vpp} stages need as many layers; the model has {layers}, and vpp > 1 needs pp > 1",
        lambda c: _bool((c["pp"] * c["vpp"] <= c["layers"]) & ((c["vpp"] == 1) | (c["pp"] > 1))),
    ),
    Rule(
        "experts-tile-the-stage",
        _SOURCE,
        "ep {ep} x etp {etp} must divide the {gpus} GPUs of the mesh over pp {pp}",
        lambda c: _bool((c["gpus"] // c["pp"]) % (c["ep"] * c["etp"]) == 0),
    ),
    Rule(
        "a-sequence-for-every-replica",
        _SOURCE,
        "a pass over {sequences_per_pass} sequences must give each of the data-parallel ranks of "
        "{gpus} GPUs (cp {cp}, ulysses {ulysses}, tp {tp}, pp {pp}) at least one",
        lambda c: _bool(c["gpus"] // _ranks(c) <= c["sequences_per_pass"]),
    ),
)

SHARDED_ROWS: tuple[Rule, ...] = (
    Rule(
        "one-batching-form",
        _SOURCE,
        "exactly one of micro_batch {micro_batch} and token_budget {token_budget} must be set",
        lambda c: _bool((c["micro_batch"] > 0) != (c["token_budget"] > 0)),
    ),
    Rule(
        "longest-sequence-fits",
        _SOURCE,
        "token_budget {token_budget} x ulysses {ulysses} x cp {cp} must hold the longest sequence, "
        "{max_sequence_tokens} tokens",
        lambda c: _bool(
            (c["token_budget"] == 0) | (c["token_budget"] * c["ulysses"] * c["cp"] >= c["max_sequence_tokens"])
        ),
    ),
    Rule(
        "shards-tile-the-replicas",
        _SOURCE,
        "shard_size {shard_size} must divide dp {dp} x cp {cp} x ulysses {ulysses}",
        lambda c: _bool((c["dp"] * c["cp"] * c["ulysses"]) % np.maximum(c["shard_size"], 1) == 0),
    ),
)

ENGINE: tuple[Rule, ...] = (
    Rule(
        "engines-tile-the-mesh",
        _SOURCE,
        "engine_dp {engine_dp} x tp {tp} x pp {pp} must divide the {gpus} GPUs of the mesh",
        lambda c: _bool(c["gpus"] % (c["engine_dp"] * c["tp"] * c["pp"]) == 0),
    ),
    Rule(
        "heads-divide",
        _SOURCE,
        "tp {tp} must divide the {heads} attention heads of the model",
        lambda c: _bool(c["heads"] % c["tp"] == 0),
    ),
    RECURRENT_HEADS,
    Rule(
        "experts-divide",
        _SOURCE,
        "ep {ep} must divide the {experts} experts of the model, and equal tp {tp} x engine_dp {engine_dp}",
        lambda c: _bool(_experts_divide(c) & ((c["ep"] == 1) | (c["ep"] == c["tp"] * c["engine_dp"]))),
    ),
    Rule(
        "pipeline-has-layers",
        _SOURCE,
        "pp {pp} stages need as many layers; the model has {layers}",
        lambda c: _bool(c["pp"] <= c["layers"]),
    ),
    Rule(
        "a-sequence-for-every-engine",
        _SOURCE,
        "{sequences_per_step} sequences of a step must give each engine of {gpus} GPUs at least one",
        lambda c: _bool(c["gpus"] // (c["engine_dp"] * c["tp"] * c["pp"]) <= c["sequences_per_step"]),
    ),
)
