"""[PF]'s tables of work and depth: of training under each scheme, and of the step under each arrangement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpegc.ir.text import parse_graph
from rpegc.ir.work_depth import (
    STEP_SCHEMES,
    TRAINING_SCHEMES,
    Degrees,
    PaperModel,
    forward_depth,
    generation_depth,
    step_work_depth,
    training_cost,
)

MODEL = PaperModel(32, 4096, 11008, 32, 32000)
MOE = PaperModel(32, 4096, 11008, 32, 32000, experts=64, active=8, expert_intermediate=1408)
DEGREES = Degrees(data=8, tensor=4, pipeline=2, context=2, expert=16)


def cost_table() -> str:
    lines = [f"{'scheme':<6} {'work':>12} {'memory':>12} {'rank depth':>11} {'depth':>11}"]
    for scheme in TRAINING_SCHEMES:
        model = MOE if scheme in ("ep", "5d") else MODEL
        cost = training_cost(scheme, model, 64, 4096, DEGREES)
        lines.append(
            f"{scheme:<6} {cost.work:>12.5e} {cost.memory_elements:>12.5e} {cost.rank_depth:>11.2f} {cost.depth:>11.2f}"
        )
    return "\n".join(lines) + "\n"


def test_the_table_of_training_schemes(golden: Callable[[str, str], None]) -> None:
    golden("ir/training_schemes.txt", cost_table())


def test_training_without_parallelism_is_three_forward_passes_beside_the_vocabulary() -> None:
    """C_f = 2L[4d^2 + 2 d d_ff + (S+T) d] + 2Vd per token, C_tr = 3 C_f; Table 7 leaves out the 2Vd."""
    forward = 2 * 32 * (4 * 4096**2 + 2 * 4096 * 11008 + 4096 * 4096)
    assert training_cost("none", MODEL, 64, 4096, Degrees()).work == 3 * forward * 64 * 4096
    parameters = 32 * (4 * 4096**2 + 2 * 4096 * 11008) + 32000 * 4096
    assert training_cost("none", MODEL, 64, 4096, Degrees()).memory_elements == 4 * parameters + 64 * 4096 * 32 * 4096
    depth = 2 * 32 * math.log2(4096**4 * 11008 * 4096 / 32) + math.log2(64 * 4096)
    assert training_cost("none", MODEL, 64, 4096, Degrees()).depth == pytest.approx(depth)


@pytest.mark.parametrize("scheme", ["dp", "pp", "tp", "cp"])
def test_a_scheme_of_degree_one_changes_nothing(scheme: str) -> None:
    assert training_cost(scheme, MODEL, 64, 4096, Degrees()) == training_cost("none", MODEL, 64, 4096, Degrees())


def test_what_each_scheme_shortens() -> None:
    base = training_cost("none", MODEL, 64, 4096, DEGREES)
    costs = {scheme: training_cost(scheme, MODEL, 64, 4096, DEGREES) for scheme in ("dp", "pp", "tp", "cp")}
    assert {scheme: base.work / cost.work for scheme, cost in costs.items()} == {"dp": 8, "pp": 2, "tp": 4, "cp": 2}
    assert [scheme for scheme, cost in costs.items() if cost.depth < base.depth] == ["tp"]
    assert base.depth - costs["tp"].depth == pytest.approx(2 * 32 * math.log2(4**2))
    assert costs["pp"].rank_depth < base.rank_depth
    states = base.memory_elements - 64 * 4096 * 32 * 4096
    assert costs["dp"].memory_elements - states == 64 / 8 * 4096 * 32 * 4096
    assert base.memory_elements == 4 * costs["tp"].memory_elements


def test_five_dimensions_of_degree_one_are_expert_parallelism_of_degree_one() -> None:
    one = Degrees()
    assert training_cost("5d", MOE, 64, 4096, one) == training_cost("ep", MOE, 64, 4096, one)
    # A dense model is a mixture of one expert as wide as its MLP.
    dense = replace(MODEL, experts=1, active=1, expert_intermediate=MODEL.intermediate)
    assert training_cost("ep", dense, 64, 4096, one) == training_cost("none", dense, 64, 4096, one)


def test_generation_is_as_deep_as_its_tokens_are_many_whatever_the_layout() -> None:
    one_token = forward_depth(MODEL, 1000)
    assert generation_depth(MODEL, 1000, 1) == one_token
    assert generation_depth(MODEL, 1000, 3) == pytest.approx(
        one_token + forward_depth(MODEL, 1001) + forward_depth(MODEL, 1002)
    )
    assert generation_depth(MODEL, 1000, 500, tensor=32) > 500 * 0.5 * one_token
    # A training pass is a forward and a backward chain of the same depth, and one reduction.
    training = training_cost("none", MODEL, 64, 4096, Degrees()).depth
    assert training == pytest.approx(2 * forward_depth(MODEL, 4096) + math.log2(64 * 4096))


# --- steps ------------------------------------------------------------------------------------------------------------

PPO = """rpeg ppo
stage g = generate of actor
stage a1 = forward of reward
stage a2 = forward of reference
stage a3 = forward of critic
stage t1 = train of actor
stage t2 = train of critic
edge g -> a1: x chunks CHUNKS
edge g -> a2: x chunks CHUNKS
edge g -> a3: x chunks CHUNKS
edge a1 -> t1: y1
edge a2 -> t1: y2
edge a3 -> t1: y3
edge a1 -> t2: y1
edge a2 -> t2: y2
edge a3 -> t2: y3
edge t1 -> t1: weights distance 1
edge t2 -> t2: weights distance 1
edge t2 -> a3: weights distance DISTANCE
edge t1 -> g: weights distance DISTANCE
"""
ASSESSMENT, TRAINING = ("a1", "a2", "a3"), ("t1", "t2")


def step(scheme: str, depths: dict[str, int]) -> Fraction:
    """The depth of the pipeline's graph, arranged as a scheme of Table 9 says."""
    distance = 2 if scheme == "asynchronous" else 1
    chunks = 4096 if scheme == "stage fusion" else 1
    graph = parse_graph(PPO.replace("DISTANCE", str(distance)).replace("CHUNKS", str(chunks)))
    groups = {
        "co-located": [["g", *ASSESSMENT, *TRAINING]],
        "asynchronous": [["g", name] for name in ASSESSMENT],
    }
    return step_work_depth(graph, depths, depths, groups.get(scheme, [])).depth


@pytest.mark.parametrize("actor_last", [True, False])
@pytest.mark.parametrize("scheme", ["co-located", "disaggregated", "asynchronous"])
def test_the_graph_of_each_arrangement_has_the_depth_of_the_table(scheme: str, actor_last: bool) -> None:
    depths = {"g": 10, "a1": 2, "a2": 3, "a3": 4, "t1": 7 if actor_last else 5, "t2": 5}
    table = STEP_SCHEMES[scheme](10, [2, 3, 4], [depths["t1"], 5])
    assert step(scheme, depths) == table


def test_the_table_counts_a_critic_that_the_graph_lets_run_beside_the_next_generation() -> None:
    depths = {"g": 10, "a1": 2, "a2": 3, "a3": 4, "t1": 5, "t2": 7}
    assert STEP_SCHEMES["disaggregated"](10, [2, 3, 4], [5, 7]) == 21
    assert step("disaggregated", depths) == 10 + 4 + 5


def test_fusion_is_the_limit_of_many_chunks() -> None:
    depths = {"g": 10, "a1": 2, "a2": 3, "a3": 4, "t1": 7, "t2": 5}
    assert float(step("stage fusion", depths)) == pytest.approx(
        STEP_SCHEMES["stage fusion"](10, [2, 3, 4], [7, 5]), rel=1e-3
    )


@given(st.integers(1, 50), st.lists(st.integers(1, 50), min_size=1), st.lists(st.integers(1, 50), min_size=1))
def test_arrangements_are_ordered_as_the_paper_orders_them(g: int, a: list[int], t: list[int]) -> None:
    depth = {scheme: formula(g, a, t) for scheme, formula in STEP_SCHEMES.items()}
    assert depth["co-located"] >= depth["disaggregated"] >= depth["stage fusion"] >= depth["combined, conservative"]
    assert depth["disaggregated"] >= depth["asynchronous"] >= depth["combined, conservative"] >= depth["combined"]


def test_work_adds_up_and_the_chain_names_the_longest_way_through_a_step() -> None:
    graph = parse_graph(PPO.replace("DISTANCE", "1").replace("CHUNKS", "1"))
    depths = {"g": 10, "a1": 2, "a2": 3, "a3": 4, "t1": 5, "t2": 7}
    got = step_work_depth(graph, dict.fromkeys(depths, 0.5), depths)
    assert (got.work, got.serial_depth, got.latency) == (3, 31, 10 + 4 + 7)
    assert got.chain == ("g", "a3", "t2")
