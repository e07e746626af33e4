"""The class of every pass is honest: exact ones change no update, stale ones keep the bound, model ones are allowed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_examples import COLOCATED, IN_REWARD, LEARNED_REWARD, SPLIT, context, ppo
from test_pass_laws import graphs

from passes import default_passes
from passes.fuse import FuseAssessment, FuseTraining
from passes.insert_transitions import InsertTransitions
from passes.parallelize import Parallelize
from passes.partial_rollout import PartialRollout
from passes.place import Place
from passes.quantize import QuantizeCollectives, QuantizeRollout
from passes.shared_trunk import MergeCriticReward, ShareActorCritic
from passes.split_tail import SplitTail
from passes.stream_rollout import StreamRollout
from passes.vocabulary import fired, per_sample
from rpegc.ir.fusion import composites
from rpegc.ir.graph import Graph, Op
from rpegc.ir.meaning import staleness_bound, updates
from rpegc.ir.verify import verify
from rpegc.rewrite import Context, Pass, run_passes

SCHEDULES: tuple[Pass, ...] = (
    SplitTail(),
    SplitTail(share=0.25),
    StreamRollout(),
    StreamRollout(chunks=8),
    FuseAssessment(),
    FuseTraining(),
    InsertTransitions(),
    Place(),
    Parallelize(),
)
"""Passes that move work in time and place; those that drop work have laws of their own (test_pass_laws)."""

contexts = st.builds(
    lambda minibatches, samples, correction, staleness, partial, changes, kl: context(
        minibatches_per_step=minibatches,
        samples_per_prompt=samples,
        importance_correction=correction,
        max_staleness=staleness,
        partial_rollout=partial,
        model_changes=changes,
        kl_coefficient=kl,
        placements=(COLOCATED, SPLIT),
    ),
    st.sampled_from((1, 4)),
    st.sampled_from((1, 16)),
    st.booleans(),
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from((frozenset(), frozenset({"stream-rollout"}), frozenset({"share-actor-critic"}))),
    st.sampled_from((0.0, 0.001)),
)


def keeps_members(graph: Graph, given_context: Context) -> bool:
    """Whether every update of a graph has its synchronous members: nothing streams into it that must not."""
    if any(stage.attribute("carries") or stage.attribute("completion_order") for stage in graph.stages):
        return False
    workload = given_context.workload
    for edge in graph.edges:
        target = graph.stage(edge.target)
        several = workload.updates_per_step > 1 or workload.samples_per_prompt > 1
        if edge.chunks > 1 and target.op is Op.TRAIN and several:
            return False
        if edge.chunks > 1 and target.op is Op.FUNCTION and not per_sample(graph, target):
            return False
    return True


@settings(max_examples=40, deadline=None)
@given(graphs(), contexts)
def test_exact_passes_change_no_update(graph: Graph, given_context: Context) -> None:
    for rewrite in SCHEDULES:
        for alternative in rewrite.alternatives(graph, given_context):
            verify(alternative)
            if alternative is graph or any(r.semantics != "exact" for r in alternative.rewrites):
                continue
            assert updates(alternative) == updates(graph), rewrite.name
            assert keeps_members(alternative, given_context), rewrite.name


@settings(max_examples=12, deadline=None)
@given(graphs(), contexts)
def test_every_structure_keeps_what_its_classes_promise(graph: Graph, given_context: Context) -> None:
    plain = context(placements=(COLOCATED, SPLIT), structures=frozenset(), kl_coefficient=0.0)
    plain = replace(plain, workload=given_context.workload)
    (canonical, *_) = run_passes(default_passes()[:1], graph, plain, verify)
    variants = run_passes(default_passes(), graph, given_context, verify)
    assert variants
    for variant in variants:
        classes = {rewrite.semantics for rewrite in variant.rewrites}
        assert staleness_bound(variant) <= given_context.allow.max_staleness
        assert "model" not in classes or given_context.allow.model_changes
        if classes <= {"exact"} and not fired(variant, "drop-old-logprobs"):
            assert updates(variant) == updates(canonical)
        if classes <= {"exact", "stale"} and not fired(variant, "partial-rollout"):
            assert keeps_members(variant, given_context)
        if not fired(variant, "bounded-asynchrony") and not fired(variant, "partial-rollout"):
            assert staleness_bound(variant) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("edge update_actor -> rollout: weights distance 1", "edge update_actor -> rollout: weights distance 2"),
        ("edge update_critic -> values: weights distance 1", "edge update_critic -> values: weights distance 2"),
        ("edge rollout -> reference: sequences", "edge rollout -> reference: sequences distance 1"),
        ("edge advantages -> update_critic: returns\n", ""),
        ("stage reference = forward of reference", "stage reference = forward of critic"),
        ("stage rollout = generate of actor", 'stage rollout = generate of actor (precision = "fp8")'),
    ],
)
def test_the_check_sees_what_would_change_an_update(old: str, new: str) -> None:
    more = "edge update_critic -> reference: weights distance 1\n" if "forward of critic" in new else ""
    assert updates(ppo(old=old, new=new, more=more)) != updates(ppo())


def test_half_of_a_generation_is_not_the_whole_of_it() -> None:
    graph = SplitTail().alternatives(ppo(), context())[1]
    assert updates(graph) == updates(ppo())
    lost = tuple(e for e in graph.edges if (e.source, e.target) != ("rollout_tail", "reference"))
    assert updates(replace(graph, edges=lost)) != updates(ppo())


# --- when a pass must not fire ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rewrite", [ShareActorCritic(), MergeCriticReward(), QuantizeRollout(), QuantizeCollectives()])
def test_another_model_is_used_only_if_user_and_target_say_so(rewrite: Pass) -> None:
    graph = ppo(more=LEARNED_REWARD)
    allowed = frozenset({rewrite.name})
    assert len(rewrite.alternatives(graph, context(model_changes=allowed))) == 2
    assert rewrite.alternatives(graph, context()) == (graph,)
    assert rewrite.alternatives(graph, context(model_changes=allowed, structures=frozenset())) == (graph,)


def test_a_frozen_reward_model_keeps_its_own_trunk() -> None:
    frozen = ppo(more='stage reward = forward of reward (head = "scalar")\nedge rollout -> reward: sequences\n')
    allowed = context(model_changes=frozenset({"merge-critic-reward"}))
    assert MergeCriticReward().alternatives(frozen, allowed) == (frozen,)


def test_an_engine_that_cannot_multiply_in_fp8_generates_in_bf16() -> None:
    allowed = frozenset({"quantize-rollout"})
    given_context = context(model_changes=allowed, field_values={("generate", "precision"): ("bf16",)})
    assert QuantizeRollout().alternatives(ppo(), given_context) == (ppo(),)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_staleness": 0, "partial_rollout": True},
        {"max_staleness": 1, "partial_rollout": False},
        {"max_staleness": 1, "partial_rollout": True, "structures": frozenset()},
        {"max_staleness": 1, "partial_rollout": True, "mean_response_tokens": 8192.0},
    ],
)
def test_samples_carry_over_only_within_the_bound_and_where_lengths_vary(changes: dict[str, Any]) -> None:
    assert PartialRollout().alternatives(ppo(), context(**changes)) == (ppo(),)


def test_carrying_over_and_running_ahead_share_one_bound() -> None:
    ahead = ppo(old="update_actor -> rollout: weights distance 1", new="update_actor -> rollout: weights distance 2")
    allowed = {"partial_rollout": True, "placements": (SPLIT,)}
    assert PartialRollout().alternatives(ahead, context(max_staleness=1, **allowed)) == (ahead,)
    assert len(PartialRollout().alternatives(ahead, context(max_staleness=2, **allowed))) == 2
    assert staleness_bound(PartialRollout().alternatives(ahead, context(max_staleness=2, **allowed))[1]) == 2


def test_lengths_that_do_not_vary_have_no_tail_to_split_off() -> None:
    assert SplitTail().alternatives(ppo(), context(mean_response_tokens=8192.0)) == (ppo(),)


def test_passes_that_wait_for_each_other_are_not_fused() -> None:
    chained = ppo(more="edge reference -> values: hints\n")
    fused = FuseAssessment().alternatives(chained, context())
    for graph in fused:
        for members in composites(graph).values():
            assert {"reference", "values"} - {stage.name for stage in members}
    ordered = ppo(more="edge update_critic -> update_actor: critic_loss\n")
    assert FuseTraining().alternatives(ordered, context()) == (ordered,)


def test_a_penalty_in_the_reward_does_not_keep_assessment_from_streaming() -> None:
    streamed = StreamRollout().alternatives(ppo(more=IN_REWARD), context(minibatches_per_step=4))
    assert [edge.target for edge in streamed[1].edges if edge.chunks > 1] == [
        "verify",
        "old_logprobs",
        "reference",
        "values",
    ]
