"""The period: special cases of the literature, wrapped exclusion, streaming; and exactness against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.ir.cycles import Arc, maximum_cycle_ratio
from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.ir.period import PeriodResult, cycle_ratio, evaluate, period
from rpegc.ir.text import parse_graph

PPO = """rpeg ppo
stage generate = generate of actor
stage reward = forward of reward
stage reference = forward of reference
stage values = forward of critic
stage train_actor = train of actor
stage train_critic = train of critic
edge generate -> reward: sequences chunks CHUNKS
edge generate -> reference: sequences chunks CHUNKS
edge generate -> values: sequences chunks CHUNKS
edge reward -> train_actor: rewards
edge reference -> train_actor: reference_logprobs
edge values -> train_actor: values
edge reward -> train_critic: rewards
edge values -> train_critic: values
edge train_actor -> train_actor: weights distance 1
edge train_critic -> train_critic: weights distance 1
edge train_critic -> values: weights distance 1
edge train_actor -> generate: weights distance DISTANCE
"""
ASSESSMENT = ("reward", "reference", "values")
TRAINING = ("train_actor", "train_critic")


def ppo(distance: int = 1, chunks: int = 1) -> Graph:
    return parse_graph(PPO.replace("DISTANCE", str(distance)).replace("CHUNKS", str(chunks)))


def ppo_seconds(g: float, a: Sequence[float], t: Sequence[float]) -> dict[str, float]:
    return {"generate": g, **dict(zip(ASSESSMENT, a, strict=True)), **dict(zip(TRAINING, t, strict=True))}


def chain(distance: int) -> Graph:
    """Generate, assess, train, one of each."""
    return parse_graph(
        "rpeg chain\nstage g = generate of actor\nstage a = forward of judge\nstage t = train of actor\n"
        f"edge g -> a: x\nedge a -> t: y\nedge t -> t: weights distance 1\nedge t -> g: weights distance {distance}\n"
    )


def assert_schedule_holds(
    graph: Graph, seconds: Mapping[str, Fraction], groups: Sequence[Sequence[str]], got: PeriodResult
) -> None:
    """Lay many steps out in time: every edge waits, and no two executions in one group overlap."""
    for edge in graph.edges:
        begin = got.starts[edge.target] + edge.distance * got.period
        assert begin >= got.starts[edge.source] + seconds[edge.source]
    for group in groups:
        runs = sorted(
            (got.starts[name] + step * got.period, got.starts[name] + step * got.period + seconds[name])
            for name in group
            for step in range(-12, 13)
            if seconds[name]
        )
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(runs))


# --- special cases ----------------------------------------------------------------------------------------------------


def test_colocated_stages_add_up() -> None:
    everything = [["generate", *ASSESSMENT, *TRAINING]]
    assert period(ppo(), ppo_seconds(10, (1, 2, 3), (4, 5)), everything).period == 10 + (1 + 2 + 3) + (4 + 5)


def test_disaggregated_stages_cost_their_maxima() -> None:
    assert period(ppo(), ppo_seconds(10, (1, 2, 3), (4, 5)), []).period == 10 + 3 + 4
    # The critic's own loop (values, train_critic) runs beside the actor's: only a path through the actor counts.
    assert period(ppo(), ppo_seconds(10, (1, 2, 3), (5, 4)), []).period == 10 + 3 + 5


@pytest.mark.parametrize(("g", "a", "t"), [(10, (1, 2, 3), (4, 5)), (2, (1, 1, 1), (9, 1))])
def test_one_step_asynchronous_with_generation_and_assessment_beside_training(
    g: int, a: tuple[int, ...], t: tuple[int, ...]
) -> None:
    """Max(G + A_max, T_max) is for assessments that run beside each other; one mesh for all adds them up."""
    seconds = ppo_seconds(g, a, t)
    beside = [["generate", name] for name in ASSESSMENT]
    assert period(ppo(2), seconds, beside).period == max(g + max(a), max(t))
    assert period(ppo(2), seconds, [["generate", *ASSESSMENT]]).period == max(g + sum(a), max(t))


@pytest.mark.parametrize(("g", "a", "t"), [(10, 3, 5), (10, 1, 2), (3, 9, 3), (2, 3, 12), (7, 7, 7)])
def test_one_step_asynchronous_with_a_mesh_for_each(g: int, a: int, t: int) -> None:
    seconds = {"g": g, "a": a, "t": t}
    assert period(chain(2), seconds, []).period == max(Fraction(g + a + t, 2), g, a, t)
    assert period(chain(2), seconds, [["g", "a"]]).period == max(g + a, t)


def test_a_judge_on_another_mesh_hides_behind_the_next_step_only_if_windings_may_differ() -> None:
    seconds = {"g": 5, "a": 10, "t": 5}
    best = period(chain(2), seconds, [["g", "t"]])
    assert best.period == 10
    order_of_one_step = evaluate(chain(2), seconds, {("g", "t"): 0})
    assert order_of_one_step is not None
    assert order_of_one_step.period == 20
    again = evaluate(chain(2), seconds, best.windings)
    assert again is not None
    assert again.period == 10


def test_the_critical_cycle_names_the_stages_that_force_the_period() -> None:
    critical = period(ppo(), ppo_seconds(10, (1, 2, 3), (4, 5)), []).critical
    assert sorted(critical) == ["generate", "train_actor", "values"]


# --- streaming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("g", "a"), [(12, (1, 2, 6)), (4, (1, 2, 8))])
@pytest.mark.parametrize("chunks", [1, 2, 8, 64])
def test_streamed_assessment_tends_to_the_maximum_of_generation_and_assessment(
    g: int, a: tuple[int, ...], chunks: int
) -> None:
    got = period(ppo(1, chunks), ppo_seconds(g, a, (3, 1)), []).period
    longest, shortest = max(g, *a), min(g, max(a))
    assert got == longest + Fraction(shortest, chunks) + 3


def test_a_late_tail_delays_what_streams_behind_it() -> None:
    graph = parse_graph(
        "rpeg tail\nstage g = generate of actor\nstage a = forward of judge\nstage t = train of actor\n"
        "edge g -> a: x chunks 4\nedge a -> t: y\nedge t -> t: weights distance 1\nedge t -> g: weights distance 1\n"
    )
    seconds = {"g": 10, "a": 8, "t": 1}
    early = period(graph, seconds, [], {"g": [1, 2, 3, 10]}).period
    late = period(graph, seconds, [], {"g": [7, 8, 9, 10]}).period
    assert early == max(1 + 8, 10 + 2) + 1
    assert late == (7 + 8) + 1
    # A curve of more parts than chunks is read where each chunk ends.
    assert period(graph, seconds, [], {"g": [1, 1, 1, 2, 2, 3, 3, 10]}).period == early


# --- exactness --------------------------------------------------------------------------------------------------------


@st.composite
def arcs(draw: st.DrawFn) -> list[Arc]:
    count = draw(st.integers(1, 4))
    node = st.integers(0, count - 1).map(str)
    weight = st.fractions(0, 5, max_denominator=4)
    return [
        Arc(*values)
        for values in draw(st.lists(st.tuples(node, node, weight, st.integers(0, 3)), min_size=1, max_size=7))
    ]


@settings(max_examples=150, deadline=None)
@given(arcs())
def test_the_cycle_ratio_is_the_maximum_over_all_cycles(listed: list[Arc]) -> None:
    graph: networkx.MultiDiGraph[str] = networkx.MultiDiGraph()
    for number, arc in enumerate(listed):
        graph.add_edge(arc.source, arc.target, key=number)
    expected: Fraction | None = Fraction(0)
    for nodes in networkx.simple_cycles(networkx.DiGraph(graph)):
        hops = [list(graph[u][v]) for u, v in zip(nodes, [*nodes[1:], nodes[0]], strict=True)]
        for choice in itertools.product(*hops):
            weight = sum(listed[number].weight for number in choice)
            distance = sum(listed[number].distance for number in choice)
            if distance == 0 and weight > 0:
                expected = None
            elif distance > 0 and expected is not None:
                expected = max(expected, Fraction(weight) / distance)
    got = maximum_cycle_ratio(listed)
    assert (got.period if got else None) == expected


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Graph, dict[str, Fraction], list[list[str]]]:
    count = draw(st.integers(2, 4))
    names = [f"s{i}" for i in range(count)]
    stages = tuple(Stage(name, Op.FUNCTION) for name in names)
    edges = []
    for i, j in itertools.permutations(range(count), 2):
        distance = draw(st.sampled_from((None, None, 0, 1, 2) if i < j else (None, None, 1, 2, 3)))
        if distance is not None:
            edges.append(Edge(names[i], names[j], "x", distance))
    seconds = {name: Fraction(draw(st.integers(0, 8))) for name in names}
    groups = draw(st.lists(st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True), max_size=2))
    return Graph("random", stages, tuple(edges)), seconds, groups


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_no_winding_beats_the_period_and_its_schedule_holds(
    case: tuple[Graph, dict[str, Fraction], list[list[str]]],
) -> None:
    graph, seconds, groups = case
    got = period(graph, seconds, groups)
    assert_schedule_holds(graph, seconds, groups, got)
    again = evaluate(graph, seconds, got.windings)
    assert again is not None
    assert again.period == got.period
    pairs = list(got.windings)[:3]
    others = {pair: k for pair, k in got.windings.items() if pair not in pairs}
    for ks in itertools.product(range(-3, 4), repeat=len(pairs)):
        tried = cycle_ratio(graph, seconds, others | dict(zip(pairs, ks, strict=True)))
        assert tried is None or tried.period >= got.period


def test_parts_that_no_edge_leads_back_from_are_shifted_apart() -> None:
    graph = Graph(
        "sink",
        tuple(Stage(name, Op.FUNCTION) for name in ("a", "b", "c")),
        (Edge("a", "b", "x"), Edge("b", "c", "y")),
    )
    seconds = {"a": Fraction(5), "b": Fraction(3), "c": Fraction(4)}
    got = period(graph, seconds, [["a", "c"]])
    assert got.period == 9
    assert_schedule_holds(graph, seconds, [["a", "c"]], got)


def test_floating_seconds_are_taken_as_the_fractions_that_they_are() -> None:
    assert period(chain(1), {"g": 0.1, "a": 0.2, "t": 0.3}, []).period == Fraction(0.1) + Fraction(0.2) + Fraction(0.3)
