"""What must hold of every compiled plan, checked with other code than the search's own."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product

import pytest
from example_plans import EXAMPLES, example, separate_rollout

import backends
from rpegc.compiler import Options, compile_pipeline
from rpegc.frontend.load import pipeline_from_text
from rpegc.ir.graph import Graph, Op, Stage
from rpegc.ir.period import period
from rpegc.ir.text import parse_graph, print_graph
from rpegc.ir.verify import verify
from rpegc.plan import Plan, plan_from_document
from rpegc.search.enumerate import legal_layouts
from rpegc.target import EngineLayout, MeshClass, ShardedLayout

OPTIONS = Options(space="quick")


@pytest.fixture(scope="module", params=[*EXAMPLES, None], ids=lambda path: path.stem if path else "one-step-off")
def plan(request: pytest.FixtureRequest) -> Plan:
    return example(request.param) if request.param else separate_rollout()[0]


def meshes_of(plan: Plan, name: str) -> set[str]:
    """Return the meshes that a stage occupies: its own, or both ends' of a sync."""
    if plan.stage(name).mesh:
        return {plan.stage(name).mesh}
    if plan.graph.stage(name).op is not Op.SYNC:
        return set()
    ends = [edge.source for edge in plan.graph.into(name)] + [edge.target for edge in plan.graph.out_of(name)]
    return {plan.stage(end).mesh for end in ends}


def test_the_period_is_the_least_over_all_orders(plan: Plan) -> None:
    seconds = {stage.name: Fraction(round(stage.seconds * 1000 + 0.4999)) for stage in plan.stages}
    groups = [[stage.name for stage in plan.stages if mesh.name in meshes_of(plan, stage.name)] for mesh in plan.meshes]
    functions = [stage.name for stage in plan.stages if stage.op == Op.FUNCTION]
    least = period(plan.graph, seconds, [*groups, functions])
    assert float(least.period) / 1000 == pytest.approx(plan.period_s, abs=0.001 * len(plan.stages))


def test_certificate_and_interval_enclose_the_period(plan: Plan) -> None:
    assert 0 < plan.lower_bound_s <= plan.period_s
    assert plan.gap == pytest.approx(1 - plan.lower_bound_s / plan.period_s)
    assert plan.gap <= 0.01 + 0.001 / plan.period_s
    low, high = plan.period_interval_s
    assert low < plan.period_s < high


def test_every_stage_starts_after_what_it_waits_for(plan: Plan) -> None:
    for edge in plan.graph.edges:
        source, target = plan.stage(edge.source), plan.stage(edge.target)
        assert target.start_s + edge.distance * plan.period_s >= source.start_s + source.seconds - 0.005


def test_terms_add_up_to_each_stage(plan: Plan) -> None:
    for stage in plan.stages:
        assert sum(term.seconds for term in stage.terms.values()) == pytest.approx(stage.seconds, rel=1e-9, abs=1e-9)


def test_memory_fits_with_the_stated_probability(plan: Plan) -> None:
    for phase in plan.memory:
        assert phase.device_total_bytes == pytest.approx(sum(phase.device_bytes.values()))
        assert phase.device_total_bytes <= phase.device_capacity_bytes
        assert phase.host_total_bytes <= phase.host_capacity_bytes
        assert phase.fit_probability >= 0.95


def test_layouts_tile_their_meshes(plan: Plan) -> None:
    for stage in plan.stages:
        layout = stage.layout
        if isinstance(layout, ShardedLayout):
            ranks = layout.dp * layout.cp * layout.ulysses * layout.tp * layout.pp
            assert ranks == plan.mesh(stage.mesh).gpus
            assert ranks % layout.shard_size == 0
        elif isinstance(layout, EngineLayout):
            ranks = layout.replicas * layout.engine_dp * layout.tp * layout.pp
            assert ranks == plan.mesh(stage.mesh).gpus


def test_tied_stages_agree(plan: Plan) -> None:
    for tie in backends.backend(plan.target.name).ties_for(plan.graph):
        rows = {tuple(getattr(plan.stage(name).layout, field) for field in tie.fields) for name in tie.stages}
        assert len(rows) == 1, tie
        assert len({plan.stage(name).mesh for name in tie.stages}) == 1


def test_meshes_lie_side_by_side_inside_the_cluster(plan: Plan) -> None:
    for mesh in plan.meshes:
        assert mesh.first_node + mesh.nodes <= plan.devices.nodes
        assert mesh.first_gpu + mesh.gpus_per_node <= plan.devices.gpus_per_node
        assert not any(mesh.overlaps(other) for other in plan.meshes if other is not mesh)


def test_plan_survives_its_json(plan: Plan) -> None:
    text = plan.to_json()
    again = plan_from_document(json.loads(text), "plan.json")
    assert again == plan
    assert again.to_json() == text
    verify(again.graph)
    assert parse_graph(print_graph(plan.graph)) == plan.graph


def test_rates_follow_from_the_period(plan: Plan) -> None:
    assert plan.gpu_hours_per_step == pytest.approx(plan.devices.gpus * plan.period_s / 3600)
    assert 0.02 < plan.mfu < 0.8


PIPELINE = """
name: small
algorithm: grpo
models:
  actor: {config: Qwen/Qwen3-8B}
  reference: {like: actor}
workload:
  prompts_per_step: 256
  samples_per_prompt: 8
  prompt_tokens: {mean: 200, max: 512}
  response_tokens: {mean: RESPONSE, max: 16384}
  minibatches_per_step: 1
reward: {function: "reward.py:score", seconds_per_sample: 0.01, workers_per_node: 32}
cluster: {hardware: gh200-alps, nodes: 8, site: alps}
allow: {max_staleness: STALENESS, minimum_gain: GAIN}
objective: OBJECTIVE
"""


def compiled(response: int = 4000, staleness: int = 0, gain: float = 0.05, objective: str = "step_time") -> Plan:
    text = PIPELINE.replace("RESPONSE", str(response)).replace("STALENESS", str(staleness))
    text = text.replace("GAIN", str(gain)).replace("OBJECTIVE", objective)
    return compile_pipeline(pipeline_from_text(text), OPTIONS)


def test_gpu_hours_are_never_higher_when_they_are_the_objective() -> None:
    fast, cheap = compiled(), compiled(objective="gpu_hours")
    assert cheap.gpu_hours_per_step <= fast.gpu_hours_per_step
    assert cheap.period_s >= fast.period_s * (1 - 0.01)
    assert cheap.objective.value == pytest.approx(cheap.gpu_hours_per_step)
    assert cheap.gap <= 0.01 + 0.001


def test_staleness_is_chosen_only_where_it_is_allowed_and_worth_it() -> None:
    synchronous = compiled(staleness=0)
    allowed = compiled(staleness=1, gain=0.0)
    refused = compiled(staleness=1, gain=0.99)
    assert synchronous.staleness.bound == refused.staleness.bound == 0
    assert allowed.period_s <= synchronous.period_s
    assert refused.period_s == synchronous.period_s
    if allowed.staleness.bound:
        assert {"rollout", "trainer"} == {mesh.name for mesh in allowed.meshes}
        fired = {rewrite.name: rewrite for rewrite in allowed.rewrites}
        assert fired["bounded-asynchrony"].semantics == "stale"
        assert fired["bounded-asynchrony"].gain == pytest.approx(1 - allowed.period_s / synchronous.period_s, abs=1e-3)


def test_longer_responses_cost_more() -> None:
    assert compiled(response=2000).period_s < compiled(response=6000).period_s


DOMAIN = {
    "ulysses": (1, 2, 4),
    "cp": (1, 2),
    "tp": (1, 2),
    "pp": (1, 2),
    "vpp": (1,),
    "ep": (1,),
    "etp": (1,),
    "sequence_parallel": (True,),
    "zero": (2, 3),
    "shard_size": (0, 2),
    "micro_batch": (0,),
    "token_budget": (1024, 2048),
    "recompute": ("none", "full"),
    "offload_parameters": (False,),
    "offload_optimizer": (False,),
    "offload_activations": (False,),
}
FACTS = {"heads": 8, "layers": 3, "experts": 0, "sequences_per_pass": 4, "max_sequence_tokens": 2048}


def test_enumeration_equals_brute_force() -> None:
    mesh = MeshClass(2, 4)
    stage = Stage("update", Op.TRAIN, "actor", layouts=tuple(sorted(DOMAIN.items())))  # type: ignore[arg-type]
    found = legal_layouts(stage, mesh, FACTS, ())
    names = ("dp", "ulysses", "cp", "tp", "pp", "zero", "shard_size", "token_budget", "recompute")
    rows = {tuple(found[name][row].item() for name in names) for row in range(len(found["tp"]))}
    expected = set()
    for ulysses, cp, tp, pp, zero, shard, budget, recompute in product(
        (1, 2, 4), (1, 2), (1, 2), (1, 2), (2, 3), (0, 2), (1024, 2048), (0, 2)
    ):
        ranks = ulysses * cp * tp * pp
        if 8 % ranks or 8 % (tp * ulysses) or 8 // ranks > 4 or budget * ulysses * cp < 2048:
            continue
        replicated = 8 // (tp * pp)
        size = shard or replicated
        if replicated % size or (shard and shard >= replicated):
            continue
        first_that_holds_all = 1024 * ulysses * cp >= -(-4 // (8 // ranks)) * 2048
        if budget == 2048 and first_that_holds_all:
            continue
        expected.add((8 // ranks, ulysses, cp, tp, pp, zero, size, budget, recompute))
    assert rows == expected
    assert len(found["tp"]) == len(rows)


def test_graph_of_a_plan_is_bound(plan: Plan) -> None:
    graph: Graph = plan.graph
    assert {stage.name for stage in graph.stages} == {stage.name for stage in plan.stages}
    assert all(plan.stage(stage.name).layout is not None for stage in graph.stages if stage.op.on_gpus)


MANY_UPDATES = """
name: many-updates
algorithm: grpo
models: {actor: {config: Qwen/Qwen3-32B}, reference: {like: actor}}
workload:
  prompts_per_step: 64
  samples_per_prompt: 16
  prompt_tokens: {mean: 100, max: 256}
  response_tokens: {mean: 200, max: 512}
  minibatches_per_step: 16
training: {kl: {coefficient: 0.01}}
reward: {seconds_per_sample: 0}
cluster: {hardware: h200-dgx, nodes: 4}
"""


def test_a_bound_holds_for_every_plan_of_its_space() -> None:
    """Many updates a step: a forward pass batches the whole step, so its large token budgets must stay in the space."""
    default = compile_pipeline(pipeline_from_text(MANY_UPDATES), Options(space="default"))
    fix = "fix: {old_logprobs: {token_budget: 16384}, reference: {token_budget: 16384}}\n"
    for text, space in ((MANY_UPDATES, "quick"), (MANY_UPDATES + fix, "default")):
        narrower = compile_pipeline(pipeline_from_text(text), Options(space=space))
        assert default.lower_bound_s <= narrower.period_s
