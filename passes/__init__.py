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
        PartialRollout(),
        SplitTail(),
        StreamRollout(),
        FuseAssessment(),
        FuseTraining(),
        InsertTransitions(),
        Place(),
        Parallelize(),
    )
