"""Every pass by its text before and after."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pass_examples import (
    COLOCATED,
    IN_REWARD,
    LEARNED_REWARD,
    MODELS,
    ONE_STEP_OFF,
    SPLIT,
    before_and_after,
    context,
    facts,
    ppo,
)

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
from rpegc.ir.graph import Graph
from rpegc.rewrite import Context, Pass

WITH_ADAPTER = MODELS | {"actor": facts("actor", lora_rank=32)}
IN_REWARD_ONLY = ppo(old="edge reference -> update_actor: reference_logprobs\n", more=IN_REWARD)
TWINS = """stage reference_again = forward of reference (head = "logits")
edge rollout -> reference_again: sequences
edge reference_again -> advantages: teacher_logprobs
"""
EXPERTS = MODELS | {"actor": facts("actor", experts=8)}

CASES: dict[str, tuple[Pass, Graph, Context]] = {
    "canonicalize-penalty-in-loss": (Canonicalize(), ppo(), context(kl_coefficient=0.0)),
    "canonicalize-penalty-in-reward": (
        Canonicalize(),
        IN_REWARD_ONLY,
        context(kl_coefficient=0.0, kl_where="reward"),
    ),
    "canonicalize-equal-stages": (Canonicalize(), ppo(more=TWINS), context()),
    "drop-old-logprobs": (DropOldLogprobs(), ppo(), context()),
    "reuse-rollout-logprobs": (
        ReuseRolloutLogprobs(),
        ppo(more=IN_REWARD),
        context(model_changes=frozenset({"reuse-rollout-logprobs"})),
    ),
    "share-base-reference": (ShareBaseReference(), ppo(), context(models=WITH_ADAPTER)),
    "bounded-asynchrony": (BoundedAsynchrony(), ppo(), context(max_staleness=4, placements=(COLOCATED, SPLIT))),
    "share-actor-critic": (ShareActorCritic(), ppo(), context(model_changes=frozenset({"share-actor-critic"}))),
    "merge-critic-reward": (
        MergeCriticReward(),
        ppo(more=LEARNED_REWARD),
        context(model_changes=frozenset({"merge-critic-reward"})),
    ),
    "fuse-assessment": (FuseAssessment(), ppo(), context()),
    "fuse-training": (FuseTraining(), ppo(), context()),
    "stream-rollout-assessment": (StreamRollout(), ppo(), context(minibatches_per_step=4)),
    "stream-rollout-training": (
        StreamRollout(),
        ppo(old="stage advantages = function", new='stage advantages = function (scope = "sample")'),
        context(samples_per_prompt=1),
    ),
    "stream-rollout-completion-order": (
        StreamRollout(),
        ppo(),
        context(samples_per_prompt=1, minibatches_per_step=4, model_changes=frozenset({"stream-rollout"})),
    ),
    "split-tail": (SplitTail(), ppo(), context()),
    "partial-rollout": (PartialRollout(), ppo(), context(max_staleness=1, partial_rollout=True)),
    "quantize-rollout": (QuantizeRollout(), ppo(), context(model_changes=frozenset({"quantize-rollout"}))),
    "quantize-collectives": (QuantizeCollectives(), ppo(), context(model_changes=frozenset({"quantize-collectives"}))),
    "minibatches-by-completion": (
        MinibatchesByCompletion(),
        BoundedAsynchrony().alternatives(ppo(), context(max_staleness=1, placements=(COLOCATED, SPLIT)))[-1],
        context(model_changes=frozenset({"minibatches-by-completion"})),
    ),
    "insert-transitions": (InsertTransitions(), ppo(), context(placements=(COLOCATED, SPLIT))),
    "place": (Place(), ppo(), context(placements=(COLOCATED, SPLIT, ONE_STEP_OFF))),
    "parallelize": (
        Parallelize(),
        ppo(),
        context(models=EXPERTS, field_values={("train", "recompute"): ("full", "none")}),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_text_before_and_after(case: str, golden: Callable[[str, str], None]) -> None:
    golden(f"passes/{case}.rpeg", before_and_after(*CASES[case]))


def test_every_pass_has_a_golden_text() -> None:
    from passes import default_passes

    assert {type(rewrite) for rewrite in default_passes()} == {type(rewrite) for rewrite, _, _ in CASES.values()}
