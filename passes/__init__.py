"""Rewrite passes, one family a file, and the order in which a compilation runs them."""

from __future__ import annotations

from rpegc.rewrite import Pass


def default_passes() -> tuple[Pass, ...]:
    """Return the passes in canonical order: structure first, then transitions, meshes and layouts.

    A pass that only holds for synchronous pipelines (`drop-old-logprobs`) comes before `bounded-asynchrony`; domains
    come last, because they describe the stages that the structure passes left.
    """
    from passes.bounded_asynchrony import BoundedAsynchrony
    from passes.canonicalize import Canonicalize
    from passes.insert_transitions import InsertTransitions
    from passes.minibatches_by_completion import MinibatchesByCompletion
    from passes.old_logprobs import DropOldLogprobs, ReuseRolloutLogprobs
    from passes.parallelize import Parallelize
    from passes.place import Place
    from passes.share_base_reference import ShareBaseReference

    return (
        Canonicalize(),
        DropOldLogprobs(),
        ReuseRolloutLogprobs(),
        ShareBaseReference(),
        BoundedAsynchrony(),
        MinibatchesByCompletion(),
        InsertTransitions(),
        Place(),
        Parallelize(),
    )
