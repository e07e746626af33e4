"""The text form of a graph: exact round trip for anything, errors that point at the wrong token."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.errors import InputError
from rpegc.ir.graph import Edge, Graph, Op, Rewrite, Stage
from rpegc.ir.text import parse_graph, print_graph

GOLDEN = Path(__file__).parent / "golden" / "ir" / "every_field.rpeg"

EVERY_FIELD = Graph(
    "qwen3-8b-grpo",
    (
        Stage("generate", Op.GENERATE, "actor", (("temperature", 1.0),), (0, 2), (("offload", (False, True)),)),
        Stage("verify", Op.FUNCTION, "", (("cpu_seconds_per_sample", 0.02), ("code", 'rewards/"math".py:score'))),
        Stage("train_actor", Op.TRAIN, "actor", (), (0, 1), (("recompute", ("none", "full")), ("tp", (1, 2)))),
    ),
    (
        Edge("generate", "verify", "sequences", 0, 4),
        Edge("verify", "train_actor", "rewards"),
        Edge("train_actor", "train_actor", "weights", 1),
        Edge("train_actor", "generate", "weights", 2),
    ),
    (0, 0, 0),
    "separate_async",
    (Rewrite("bounded-asynchrony", "stale", "weights(actor) -> generate: distance 2"),),
)

names = st.text(max_size=12) | st.sampled_from(["of", "on", "a->b", "8b", "-inf", "true", "a-b", "#", "\u2028", '\\"'])
scalars = names | st.integers() | st.floats(allow_nan=False) | st.booleans()
stages = st.builds(
    Stage,
    name=names,
    op=st.sampled_from(Op),
    model=names,
    attributes=st.lists(st.tuples(names, scalars), max_size=3).map(tuple),
    meshes=st.lists(st.integers(), max_size=3).map(tuple),
    layouts=st.lists(st.tuples(names, st.lists(scalars, max_size=3).map(tuple)), max_size=3).map(tuple),
    position=st.none(),
)
edges = st.builds(Edge, names, names, names, st.integers(), st.integers())
graphs = st.builds(
    Graph,
    names,
    st.lists(stages, max_size=3).map(tuple),
    st.lists(edges, max_size=3).map(tuple),
    st.lists(st.integers(), max_size=4).map(tuple),
    names,
    st.lists(st.builds(Rewrite, names, names, names), max_size=2).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(graphs)
def test_any_graph_reads_back_equal_with_the_types_of_its_scalars(graph: Graph) -> None:
    back = parse_graph(print_graph(graph))
    assert back == graph
    assert repr([(s.attributes, s.layouts) for s in back.stages]) == repr(
        [(s.attributes, s.layouts) for s in graph.stages]
    )


def test_the_text_of_a_graph_with_every_field_is_the_golden_text() -> None:
    assert print_graph(EVERY_FIELD) == GOLDEN.read_text()


def test_stages_remember_where_they_were_written() -> None:
    graph = parse_graph(GOLDEN.read_text(), "every_field.rpeg")
    position = graph.stage("train_actor").position
    assert position is not None
    assert (position.file, position.line, position.column) == ("every_field.rpeg", 7, 7)
    assert position.text.startswith("stage train_actor = train of actor")


def test_comments_blank_lines_and_tight_spacing_are_read() -> None:
    graph = parse_graph("# a note\nrpeg small\n\nstage a=function # one\nstage b=function\nedge a->b:text\n")
    assert [stage.name for stage in graph.stages] == ["a", "b"]
    assert graph.edges == (Edge("a", "b", "text"),)


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("", 1, 1, "starts with `rpeg NAME`"),
        ("stage a = function", 1, 1, "starts with `rpeg NAME`"),
        ("rpeg g\nstgae a = function", 2, 1, "did you mean `stage`"),
        ("rpeg g\nstage a = trian of actor", 2, 11, "did you mean `train`"),
        ("rpeg g\nstage a = train of", 2, 19, "expected a role, the line ends here"),
        ("rpeg g\nstage a = train (x = none)", 2, 22, 'write a string as "none"'),
        ("rpeg g\nedge a -> b: v distance 1.5", 2, 25, "expected an integer, found `1.5`"),
        ("rpeg g\nedge a -> b: v distance 1 2", 2, 27, "expected the end of the line"),
        ('rpeg "g', 1, 6, "this string does not end"),
        ('rpeg "\\q"', 1, 6, "not a JSON string"),
        ("rpeg g\nmode a\nmode b", 3, 1, "only once"),
        ("rpeg g\nstage a ? function", 2, 9, "unexpected character '?'"),
        ("rpeg g\ntree " + "1" * 5000, 2, 6, "too many digits (5000)"),
    ],
)
def test_a_wrong_text_is_refused_at_the_wrong_token(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_graph(text, "user.rpeg")
    assert caught.value.position is not None
    assert (caught.value.position.line, caught.value.position.column) == (line, column)
    assert says in str(caught.value)
