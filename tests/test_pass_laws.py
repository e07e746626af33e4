"""When passes fire, when they must not, and what every pass keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_examples import COLOCATED, IN_REWARD, MODELS, ONE_STEP_OFF, SPLIT, context, facts, ppo

from passes import default_passes
from passes.bounded_asynchrony import BoundedAsynchrony
from passes.canonicalize import Canonicalize
from passes.insert_transitions import InsertTransitions
from passes.old_logprobs import DropOldLogprobs, ReuseRolloutLogprobs
from passes.parallelize import Parallelize
from passes.place import Place, misfits
from passes.share_base_reference import ShareBaseReference
from passes.vocabulary import fired, publications
from rpegc.errors import InputError
from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.ir.verify import verify
from rpegc.rewrite import Pass, PassFault, run_passes

ADAPTED = MODELS | {"actor": facts("actor", lora_rank=32)}
REUSE = frozenset({"reuse-rollout-logprobs"})

STALE = ppo(old="update_actor -> rollout: weights distance 1", new="update_actor -> rollout: weights distance 2")


def assert_unchanged(rewrite: Pass, graph: Graph, **changes: Any) -> None:
    assert rewrite.alternatives(graph, context(**changes)) == (graph,)


# --- when a pass must not fire ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "changes"),
    [
        (ppo(), {"minibatches_per_step": 4}),
        (ppo(), {"epochs_per_batch": 2}),
        (ppo(), {"importance_correction": True}),
        (ppo(), {"structures": frozenset()}),
        (STALE, {}),
        (ppo(more=IN_REWARD), {}),  # the penalty compares them with the reference
    ],
)
def test_old_logprobs_stay_where_dropping_them_would_not_be_exact(graph: Graph, changes: dict[str, Any]) -> None:
    assert_unchanged(DropOldLogprobs(), graph, **changes)


def test_the_graph_with_old_logprobs_is_kept_beside_the_other_where_something_needs_it() -> None:
    assert len(DropOldLogprobs().alternatives(ppo(), context())) == 1
    assert len(DropOldLogprobs().alternatives(ppo(), context(max_staleness=1))) == 2
    forbidding = replace(COLOCATED, forbids=("drop-old-logprobs",))
    assert len(DropOldLogprobs().alternatives(ppo(), context(placements=(forbidding,)))) == 2


def test_rollout_logprobs_are_reused_only_if_the_user_allows_and_the_target_can() -> None:
    assert_unchanged(ReuseRolloutLogprobs(), ppo())
    assert_unchanged(ReuseRolloutLogprobs(), ppo(), model_changes=REUSE, structures=frozenset())


def test_the_reference_is_shared_only_with_an_adapter_and_equal_base_weights() -> None:
    assert_unchanged(ShareBaseReference(), ppo())
    assert_unchanged(ShareBaseReference(), ppo(), models=ADAPTED | {"reference": facts("reference")})
    assert_unchanged(ShareBaseReference(), ppo(), models=ADAPTED, structures=frozenset())
    both = ShareBaseReference().alternatives(ppo(), context(models=ADAPTED, placements=(COLOCATED, ONE_STEP_OFF)))
    assert [graph.stage("reference").model for graph in both] == ["reference", "actor"]


def test_generation_runs_ahead_only_as_far_as_user_and_target_allow() -> None:
    assert_unchanged(BoundedAsynchrony(), ppo(), placements=(SPLIT,))
    assert_unchanged(BoundedAsynchrony(), ppo(), max_staleness=3)  # the colocated placement supports distance 1 only
    assert_unchanged(BoundedAsynchrony(), ppo(), max_staleness=3, placements=(SPLIT,), structures=frozenset())
    (dropped,) = DropOldLogprobs().alternatives(ppo(), context())
    assert_unchanged(BoundedAsynchrony(), dropped, max_staleness=3, placements=(SPLIT,))


def test_a_penalty_that_counts_keeps_its_reference() -> None:
    assert_unchanged(Canonicalize(), ppo(), kl_coefficient=0.001)
    # The coefficient belongs to the loss: what an own function makes of the reference is not the penalty.
    (left,) = Canonicalize().alternatives(ppo(more=IN_REWARD), context(kl_coefficient=0.0))
    assert left.has("reference")


def test_sampled_stages_and_functions_are_never_merged() -> None:
    more = (
        "stage rollout_2 = generate of actor\nstage verify_2 = function (cpu_seconds_per_sample = 0.02)\n"
        "edge update_actor -> rollout_2: weights distance 1\nedge rollout_2 -> update_actor: more_sequences\n"
        "edge rollout -> verify_2: sequences\nedge verify_2 -> advantages: more_rewards\n"
    )
    assert_unchanged(Canonicalize(), ppo(more=more))


def test_a_function_that_ends_its_path_and_what_feeds_it_are_kept() -> None:
    more = "stage judge = forward of reference\nedge rollout -> judge: sequences\n"
    assert not Canonicalize().alternatives(ppo(more=more), context())[0].has("judge")
    more += "stage report = function\nedge judge -> report: marks\n"
    assert_unchanged(Canonicalize(), ppo(more=more))


# --- places and layouts -----------------------------------------------------------------------------------------------


def test_a_graph_that_a_placement_cannot_express_is_told_why() -> None:
    shared = ShareBaseReference().alternatives(ppo(), context(models=ADAPTED))[0]
    assert list(misfits(shared, ONE_STEP_OFF)) == [
        "`rollout` uses weights of distance 1, `one-step-off` supports 2 to 2",
        "`one-step-off` requires the rewrite reuse-rollout-logprobs",
        "`one-step-off` cannot express the rewrite share-base-reference",
        "`one-step-off` has no place for `values` (forward of critic)",
        "`one-step-off` has no place for `update_critic` (train of critic)",
    ]
    assert Place().alternatives(shared, context(placements=(ONE_STEP_OFF,))) == ()


def test_the_more_specific_key_of_a_placement_wins() -> None:
    homes = {"*": (0,), "op:forward": (1,), "model:critic": (2,), "stage:values": (3,)}
    pattern = replace(COLOCATED, parents=(0, 0, 0, 0), homes=homes)
    (placed,) = Place().alternatives(ppo(), context(placements=(pattern,)))
    meshes = {stage.name: stage.meshes for stage in placed.stages}
    assert (meshes["rollout"], meshes["reference"]) == ((0,), (1,))
    assert (meshes["update_critic"], meshes["values"]) == ((2,), (3,))
    assert meshes["verify"] == ()
    (free,) = Place().alternatives(ppo(), context(placements=(replace(pattern, homes={}),)))
    assert free.stage("rollout").meshes == (0, 1, 2, 3)


def test_patterns_that_differ_only_in_an_unused_mesh_are_one() -> None:
    pool = replace(COLOCATED, name="reward-pool", parents=(0, 0, 0), homes={"model:reward": (2,), "*": (1,)})
    given = context(placements=(COLOCATED, pool))
    assert len(Place().alternatives(ppo(), given)) == 1
    more = "stage reward = forward of reward\nedge rollout -> reward: sequences\nedge reward -> advantages: marks\n"
    assert [graph.tree for graph in Place().alternatives(ppo(more=more), given)] == [(0, 0), (0, 0, 0)]
    assert len(Place().alternatives(ppo(), context(placements=(pool,)))) == 1


def test_a_space_without_any_value_that_the_target_accepts_is_refused_with_both_lists() -> None:
    with pytest.raises(InputError, match="lists tp in 1, 2, 4, 8, but example accepts 3, 5"):
        Parallelize().alternatives(ppo(), context(field_values={("generate", "tp"): (3, 5)}))
    with pytest.raises(InputError, match=r"tp must divide the heads of example \(28 heads, 28 layers\)"):
        Parallelize().alternatives(ppo(), context(space={("generate", "tp"): (3, 8)}))


def test_an_illegal_graph_made_by_a_pass_is_our_fault_and_an_illegal_input_is_not() -> None:
    class Breaks:
        name = "breaks"
        semantics = "exact"

        def alternatives(self, graph: Graph, context: object) -> tuple[Graph, ...]:
            return (replace(graph, edges=(*graph.edges, Edge("update_actor", "nowhere", "x"))),)

    with pytest.raises(PassFault, match=r"pass breaks built an illegal graph: .*no stage `nowhere`"):
        run_passes([Breaks()], ppo(), context(), verify)
    with pytest.raises(InputError):
        run_passes([], replace(ppo(), stages=()), context(), verify)


# --- what every pass keeps --------------------------------------------------------------------------------------------

contexts = st.builds(
    context,
    kl_coefficient=st.sampled_from((0.0, 0.001)),
    kl_where=st.sampled_from(("loss", "reward")),
    minibatches_per_step=st.sampled_from((1, 4)),
    max_staleness=st.integers(0, 3),
    model_changes=st.sampled_from((frozenset(), REUSE)),
    models=st.sampled_from((MODELS, ADAPTED)),
    placements=st.lists(st.sampled_from((COLOCATED, SPLIT, ONE_STEP_OFF)), min_size=1, unique_by=lambda p: p.name),
    structures=st.just(
        frozenset({"drop-old-logprobs", "reuse-rollout-logprobs", "share-base-reference", "bounded-asynchrony"})
    ),  # the others, which multiply variants, are in test_pass_semantics
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """The example with random forward stages and functions beside it, some used and some not."""
    graph = ppo(more=draw(st.sampled_from(("", IN_REWARD))))
    stages, edges, makers = list(graph.stages), list(graph.edges), ["rollout"]
    for number in range(draw(st.integers(0, 5))):
        model = draw(st.sampled_from(("", "reference")))
        stage = Stage(f"extra_{number}", Op.FORWARD if model else Op.FUNCTION, model)
        for maker in draw(st.lists(st.sampled_from(makers), min_size=1, max_size=2, unique=True)):
            edges.append(Edge(maker, stage.name, f"from_{maker}"))
        if draw(st.booleans()):
            edges.append(Edge(stage.name, draw(st.sampled_from(("update_actor", "update_critic"))), f"out_{number}"))
        stages.append(stage)
        makers.append(stage.name)
    return replace(graph, stages=tuple(stages), edges=tuple(edges))


@settings(max_examples=60, deadline=None)
@given(graphs(), contexts)
def test_passes_that_rewrite_structure_are_idempotent(graph: Graph, given_context: Any) -> None:
    for rewrite in (
        Canonicalize(),
        DropOldLogprobs(),
        ReuseRolloutLogprobs(),
        ShareBaseReference(),
        InsertTransitions(),
    ):
        last = rewrite.alternatives(graph, given_context)[-1]
        assert rewrite.alternatives(last, given_context)[-1] == last


@settings(max_examples=60, deadline=None)
@given(graphs(), contexts)
def test_every_variant_is_legal_trains_the_same_models_and_respects_the_staleness_bound(
    graph: Graph, given_context: Any
) -> None:
    variants = run_passes(default_passes(), graph, given_context, verify)
    for variant in variants:
        assert [s.name for s in variant.of_op(Op.TRAIN)] == ["update_critic", "update_actor"]
        ((_, distance),) = publications(variant)
        assert 1 <= distance <= 1 + given_context.allow.max_staleness
        assert (distance > 1) == fired(variant, "bounded-asynchrony")
        assert not (distance > 1 and fired(variant, "drop-old-logprobs"))
        assert given_context.allow.model_changes or all(r.semantics != "model" for r in variant.rewrites)
        assert weight_distances(variant, besides="rollout") <= weight_distances(graph, besides="rollout")
        assert all(stage.meshes and stage.layouts for stage in variant.stages if stage.op.on_gpus)


def weight_distances(graph: Graph, besides: str) -> set[tuple[str, str, int]]:
    """(train stage, user, distance) of all weights but those of one stage, syncs seen through."""
    found = set()
    for edge in graph.edges:
        if edge.carries_weights and graph.stage(edge.target).op is not Op.SYNC and edge.target != besides:
            before = list(graph.into(edge.source)) if graph.stage(edge.source).op is Op.SYNC else []
            source = before[0].source if before else edge.source
            found.add((source, edge.target, edge.distance + sum(hop.distance for hop in before)))
    return found


@settings(max_examples=60, deadline=None)
@given(graphs(), contexts)
def test_canonicalize_keeps_what_each_update_reads(graph: Graph, given_context: Any) -> None:
    (after,) = Canonicalize().alternatives(graph, given_context)
    penalty = {"reference_logprobs"} if given_context.workload.kl_coefficient == 0 else set()
    for train in graph.of_op(Op.TRAIN):
        read = {edge.value for edge in graph.into(train.name)} - penalty
        assert read - {"old_logprobs"} == {e.value for e in after.into(train.name)} - penalty - {"old_logprobs"}
        for edge in after.into(train.name):
            makers = {old.source for old in graph.into(train.name) if old.value == edge.value}
            same = {(graph.stage(name).op, graph.stage(name).model) for name in makers}
            assert (after.stage(edge.source).op, after.stage(edge.source).model) in same
