"""Rewrite passes, one family a file, and the order in which a compilation runs them."""

from __future__ import annotations

from rpegc.rewrite import Pass


def default_passes() -> tuple[Pass, ...]:
    """Return the passes in canonical order: structure first, then transitions, meshes and layouts.

    A pass that only holds for synchronous pipelines (`drop-old-logprobs`) comes before `bounded-asynchrony`; what
    changes the stages themselves comes before what fuses them; domains come last, because they describe the stages
    that the structure passes left.
    """
    from passes.bounded_asynchrony import BoundedAsynchrony
    from passes.canonicalize import Canonicalize
    from passes.fuse import FuseAssessment, FuseTraining
    from passes.insert_transitions import InsertTransitions
    from passes.minibatches_by_completion import MinibatchesByCompletion
    from passes.old_logprobs import DropOldLogprobs, ReuseRolloutLogprobs
    from passes.parallelize import Parallelize
    from passes.partial_rollout import PartialRollout
    from passes.place import Place
    from passes.quantize import QuantizeCollectives, QuantizeRollout
    from passes.share_base_reference import ShareBaseReference
    from passes.shared_trunk import MergeCriticReward, ShareActorCritic
    from passes.split_tail import SplitTail
    from passes.stream_rollout import StreamRollout

    return (
        Canonicalize(),
        DropOldLogprobs(),
        ReuseRolloutLogprobs(),
        ShareBaseReference(),
        ShareActorCritic(),
        MergeCriticReward(),
        QuantizeRollout(),
        QuantizeCollectives(),
        BoundedAsynchrony(),
        MinibatchesByCompletion(),
        PartialRollout(),
        SplitTail(),
        StreamRollout(),
        FuseAssessment(),
        FuseTraining(),
        InsertTransitions(),
        Place(),
        Parallelize(),
    )


def with_knobs(chunks: int, tail_share: float) -> tuple[Pass, ...]:
    """Return the passes with other options for what couples stages: chunks of a stream (1: none), tail (0: none)."""
    from passes.split_tail import SplitTail
    from passes.stream_rollout import StreamRollout

    changed: list[Pass] = []
    for rewrite in default_passes():
        if isinstance(rewrite, StreamRollout):
            changed += [StreamRollout(chunks)] if chunks > 1 else []
        elif isinstance(rewrite, SplitTail):
            changed += [SplitTail(tail_share)] if tail_share else []
        else:
            changed.append(rewrite)
    return tuple(changed)
