"""Clusters of two kinds of machine: the language, the prices, the search, the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from anywhere import Anywhere
from preset_pipelines import preset_text

import backends
from rpegc.compiler import Options, Setting, best_plan, compile_pipeline, setting_of, structures, variant_of
from rpegc.cost.price import price
from rpegc.cost.transitions import link_between
from rpegc.cost.work import stage_works
from rpegc.errors import InputError, NothingFits
from rpegc.frontend.load import pipeline_from_text, restore_pipeline
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.plan import Plan, plan_from_document
from rpegc.queries import check_file
from rpegc.search.build import MEMORY_UNIT_BYTES
from rpegc.search.remedy import smallest_pool_change
from rpegc.search.solver import exhaustive
from rpegc.search.solver.problem import Cell, GpuStage, Limit
from rpegc.search.solver.solve_ilp import solve
from rpegc.search.tabulate import TableCache
from rpegc.simulate import simulate
from rpegc.target import IntArray, Mesh

QUICK = Options(space="quick", tolerance=0.02)
REAL = backends.backend


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl cannot direct a role to a type of GPU: a target that can stands in."""
    monkeypatch.setattr(backends, "backend", lambda name: REAL(name) if name == "verl" else Anywhere())


def text_of(train: str = "h100-dgx", rollout: str = "h20", nodes: tuple[int, int] = (2, 1), **keys: str) -> str:
    link = f", link_bandwidth: {keys.pop('link')}" if "link" in keys else ""
    pools = (
        f"train: {{hardware: {train}, nodes: {nodes[0]}}}, rollout: {{hardware: {rollout}, nodes: {nodes[1]}}}{link}"
    )
    return preset_text("grpo", target="native", **{"cluster": f"{{pools: {{{pools}}}}}"} | keys)


def setting(**keys: object) -> Setting:
    return setting_of(pipeline_from_text(text_of(**keys)), QUICK)  # type: ignore[arg-type]


@cache
def plan_on(train: str = "h100-dgx", rollout: str = "h20", nodes: tuple[int, int] = (2, 1)) -> Plan:
    return compile_pipeline(pipeline_from_text(text_of(train, rollout, nodes)), QUICK)


def test_each_stage_lies_in_its_pool() -> None:
    plan = plan_on()
    for stage in plan.stages:
        if stage.layout is not None:
            mesh = plan.mesh(stage.mesh)
            assert mesh.pool == ("rollout" if stage.op == Op.GENERATE else "train")
            assert mesh.first_node + mesh.nodes <= {"train": 2, "rollout": 1}[mesh.pool]
    assert plan.period_s >= plan.lower_bound_s > 0
    assert plan.search.status == "proven"


def test_the_plan_lists_its_pools_and_reads_back() -> None:
    plan = plan_on()
    document = json.loads(plan.to_json())
    pools = {pool["name"]: pool for pool in document["devices"]["pools"]}
    assert {name: (pool["hardware"], pool["gpus"]) for name, pool in pools.items()} == {
        "train": ("h100-dgx", 16),
        "rollout": ("h20", 8),
    }
    assert document["devices"]["gpus"] == 24
    assert document["devices"]["hardware"] == "h100-dgx and h20"
    assert plan_from_document(document, "plan.json").to_json() == plan.to_json()
    assert plan.gpu_hours_per_step == pytest.approx(24 * plan.period_s / 3600)
    assert {"H100", "H20"} <= {row.what.split("-")[0].split()[0] for row in plan.assumptions}
    assert simulate(plan, steps=3, warm_up=1).mean_s > 0


def test_one_kind_of_machine_has_no_pools() -> None:
    plan = compile_pipeline(pipeline_from_text(preset_text("grpo", target="native", nodes=2)), QUICK)
    assert json.loads(plan.to_json())["devices"]["pools"] == []
    assert {mesh.pool for mesh in plan.meshes} == {""}


def test_a_stage_is_priced_on_the_machine_of_its_pool() -> None:
    case = setting()
    graph = structures(case)[0]
    works = stage_works(graph, case.work)
    variant = variant_of(case, graph, TableCache())
    for name, machine in (("rollout", "h20"), ("update_actor", "h100-dgx")):
        for mesh, table in variant.tables.cells[name].items():
            alone = price(works[name], mesh, table.layouts, load_machine(machine))
            assert table.seconds.tolist() == alone.seconds.tolist()
            assert mesh.pool == ("rollout" if name == "rollout" else "train")
            assert mesh.gpus_per_node == 8


def test_memory_is_counted_in_shares_of_each_pool_s_own() -> None:
    """H20 has 96 GB where H100 has 80: the same bytes fill less of it."""
    case = setting()
    variant = variant_of(case, structures(case)[0], TableCache())
    capacity = {pool: limits[0][0] for pool, limits in case.pool_limits({}).items()}
    ratio = capacity["train"] / capacity["rollout"]
    assert ratio < 0.9
    (rollout,) = [stage for stage in variant.problem.gpu_stages if stage.name == "rollout"]
    for index, cell in rollout.cells.items():
        table = variant.tables.cells["rollout"][variant.problem.mesh_classes[index]]
        held = table.bytes("resident") + table.bytes("weights") + table.bytes("working")
        units = cell.resident + cell.weights + cell.working
        shares = units * MEMORY_UNIT_BYTES / capacity["train"]
        assert (shares >= held / capacity["rollout"] - 1e-9).all()  # rounded up, margins on top
        assert (shares <= 1.25 * held / capacity["rollout"] + 3 * MEMORY_UNIT_BYTES / capacity["train"]).all()
    phases = {phase.phase: phase for phase in plan_on().memory}
    assert phases["rollout"].device_capacity_bytes == capacity["rollout"]
    assert phases["update_actor"].device_capacity_bytes == capacity["train"]
    assert all(phase.device_total_bytes <= phase.device_capacity_bytes for phase in phases.values())


def test_the_ilp_finds_what_exhaustive_search_finds() -> None:
    """Two layouts of each stage and mesh class: few enough to try all of them, in every order."""
    case = setting(train="a100-80g", rollout="h20", nodes=(2, 2))
    for graph in structures(case):
        problem = variant_of(case, graph, TableCache()).problem
        few = tuple(
            replace(stage, cells={m: cell.take(extremes(cell)) for m, cell in stage.cells.items()})
            if isinstance(stage, GpuStage)
            else stage
            for stage in problem.stages
        )
        small = replace(problem, stages=few)
        small.check()
        exact = Limit(tolerance=0.0, follow_up_time=0.0)
        assert solve(small, exact, None).period_ms == exhaustive.solve(small, exact, None).period_ms is not None


def extremes(cell: Cell) -> IntArray:
    """Return the fastest row and the one that holds least."""
    held = cell.weights + cell.resident + cell.working
    return np.unique([int(cell.milliseconds.argmin()), int(held.argmin())]).astype(np.int64)


def test_pools_of_one_machine_cost_what_the_same_split_of_one_cluster_costs() -> None:
    """Two pools of equal machines, with their own network between them, are a cluster cut in two."""
    pools = best_plan(setting(train="gh200-alps", rollout="gh200-alps", nodes=(2, 2)))
    single = setting_of(pipeline_from_text(preset_text("grpo", target="native", nodes=4)), QUICK)
    periods = []
    for graph in structures(single):
        apart = {stage.name: stage.meshes for stage in graph.stages if stage.op.on_gpus}
        if not any(rewrite.where == "apart" for rewrite in graph.rewrites):
            continue
        homes = {name: (2,) if graph.stage(name).op is Op.GENERATE else (1,) for name in apart}
        variant = variant_of(single, graph, TableCache())
        (template,) = variant.problem.ladder
        keep = [m for m, shape in enumerate(variant.problem.mesh_classes) if shape.nodes == 2]
        stages = tuple(
            replace(stage, cells={m: cell for m, cell in stage.cells.items() if m in keep})
            if isinstance(stage, GpuStage)
            else stage
            for stage in variant.problem.stages
        )
        cut = replace(variant.problem, stages=stages, ladder=(replace(template, homes=homes),))
        found = solve(cut, Limit(tolerance=0.0), None)
        assert found.period is not None
        periods.append(float(found.period) / 1000)
    assert periods
    assert pools.period_s == pytest.approx(min(periods), rel=0.02)


def test_faster_machines_generate_faster_and_train_as_before() -> None:
    slow, fast = plan_on(rollout="a100-80g"), plan_on(rollout="h200-dgx")
    assert fast.stage("rollout").seconds < 0.8 * slow.stage("rollout").seconds
    assert fast.period_s < slow.period_s
    assert fast.stage("update_actor").seconds == pytest.approx(slow.stage("update_actor").seconds, rel=0.02)


def test_weights_cross_the_slower_network_by_assumption_or_the_one_that_is_stated() -> None:
    h100, h20 = load_machine("h100-dgx"), load_machine("h20")
    link = link_between(h100, h20)
    rates = [m.network.nic_bandwidth.value * m.network.nic_efficiency.value for m in (h100, h20)]
    assert (link.bandwidth, link.provenance) == (min(rates), "assumed")
    stated = link_between(h100, h20, 1e9)
    assert (stated.bandwidth, stated.provenance) == (1e9, "spec")
    slow = compile_pipeline(pipeline_from_text(text_of(link="1.0e+9")), QUICK)
    (sync,) = [stage for stage in plan_on().stages if stage.op == Op.SYNC]
    (slower,) = [stage for stage in slow.stages if stage.op == Op.SYNC]
    assert slower.seconds > 4e9 * 2 / 1e9 > sync.seconds
    assert sync.terms["weight_transfer"].provenance == "assumed"


def test_meshes_of_other_pools_never_overlap() -> None:
    one, other = Mesh("a", 0, 2, 0, 8, "train"), Mesh("b", 0, 2, 0, 8, "rollout")
    assert not one.overlaps(other)
    assert one.overlaps(replace(other, pool="train"))


def test_every_structure_keeps_the_kinds_apart() -> None:
    graphs = structures(setting())
    assert graphs
    for graph in graphs:
        generating = {m for s in graph.stages if s.op is Op.GENERATE for m in s.meshes}
        others = {m for s in graph.stages if s.op.on_gpus and s.op is not Op.GENERATE for m in s.meshes}
        assert generating
        assert others
        assert not generating & others
        assert 0 not in generating | others


def test_when_nothing_fits_the_pool_that_has_to_grow_is_named() -> None:
    models = "{actor: {config: Qwen/Qwen3-32B, weights: /m}}"
    text = text_of(train="a100-40g", rollout="h20", nodes=(1, 1), models=models, training="{}")
    with pytest.raises(NothingFits) as caught:
        compile_pipeline(pipeline_from_text(text), QUICK)
    assert "1 nodes of a100-40g and 1 nodes of h20" in caught.value.message
    assert "cluster.pools.train.nodes: " in caught.value.smallest_change


def test_the_smallest_pool_that_is_enough_is_found() -> None:
    assert smallest_pool_change(lambda n: n["train"] >= 5, {"train": 2, "rollout": 1}) == "cluster.pools.train.nodes: 5"
    assert smallest_pool_change(lambda n: n["rollout"] >= 3, {"train": 2, "rollout": 1}) == (
        "cluster.pools.rollout.nodes: 3"
    )
    assert "of one of the pools fits" in smallest_pool_change(lambda n: False, {"train": 2, "rollout": 1})


def test_pools_survive_the_resolved_form_and_are_understood(tmp_path_factory: pytest.TempPathFactory) -> None:
    pipeline = pipeline_from_text(text_of())
    resolved = pipeline.resolved()
    again = restore_pipeline(json.loads(json.dumps(resolved)))
    assert again.resolved() == resolved
    assert [(pool.name, pool.machine.name, pool.nodes) for pool in again.pools] == [
        ("train", "h100-dgx", 2),
        ("rollout", "h20", 1),
    ]
    assert (again.nodes, again.gpus) == (3, 24)
    file = tmp_path_factory.mktemp("pools") / "p.yaml"
    file.write_text(text_of())
    assert "grpo on 2 nodes of h100-dgx and 1 nodes of h20" in check_file(file)[1]


POOLS = "pools: {train: {hardware: h100-dgx, nodes: 2}, rollout: {hardware: h20, nodes: 1}}"
REFUSED = {
    "both forms": (f"{{hardware: h20, {POOLS}}}", "cluster.hardware and cluster.pools say the same thing"),
    "neither form": ("{nodes: 2}", "`cluster.hardware` is missing"),
    "one pool": ("{pools: {train: {hardware: h20, nodes: 1}}}", "`cluster.pools.rollout` is missing"),
    "an unknown machine": (f"{{{POOLS.replace('h20', 'h02')}}}", "unknown hardware `h02`"),
    "one price for two": (f"{{{POOLS}, usd_per_gpu_hour: 2}}", "two kinds of GPU"),
    "more than there is": (f"{{{POOLS.replace('h20, nodes: 1', 'isambard, nodes: 99999')}}}", "nodes is 99999"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_cluster_is_refused_at_its_place(case: str) -> None:
    cluster, message = REFUSED[case]
    with pytest.raises(InputError) as caught:
        pipeline_from_text(preset_text("grpo", target="native", cluster=cluster), "p.yaml")
    assert message in caught.value.message
    assert caught.value.position is not None


def test_only_the_step_time_is_planned_for_pools() -> None:
    with pytest.raises(InputError, match="objective gpu_hours is not planned for pools"):
        pipeline_from_text(text_of() + "objective: gpu_hours\n", "p.yaml")


def test_verl_refuses_pools_at_their_line() -> None:
    pipeline = pipeline_from_text(text_of().replace("target: native", "target: verl"), "p.yaml")
    with pytest.raises(InputError, match="verl cannot direct a role to a type of GPU") as caught:
        setting_of(pipeline, QUICK)
    assert "target: native" in (caught.value.hint or "")
    assert caught.value.position is not None
    assert "pools" in str(caught.value)
