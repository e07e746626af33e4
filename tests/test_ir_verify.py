"""Each rule of the verifier refuses the graph that breaks it, by name, with the values, at the user's line."""

from __future__ import annotations

import re

import pytest

from rpegc.errors import InputError
from rpegc.ir.text import parse_graph
from rpegc.ir.verify import RULES, verify

LEGAL = """rpeg small
tree 0 0 0
stage generate = generate of actor on 0 1 {tp: 1 2}
stage verify = function (cpu_seconds_per_sample = 0.02)
stage train = train of actor on 0 2 {recompute: "none" "full"; tp: 1}
stage sync = sync of actor
edge generate -> verify: sequences chunks 4
edge verify -> train: rewards
edge train -> train: weights distance 1
edge train -> sync: weights
edge sync -> generate: weights distance 1
rewrite insert-transitions exact "sync"
"""


def broken(old: str, new: str) -> str:
    assert old in LEGAL
    return LEGAL.replace(old, new, 1)


BROKEN = {
    "some-stage": "rpeg empty",
    "unique-names": broken("stage sync", "stage verify = function\nstage sync"),
    "identifiers": broken("cpu_seconds_per_sample", '"cpu seconds"'),
    "attributes": broken("(cpu_seconds_per_sample = 0.02)", "(workers = 1, cpu_seconds_per_sample = 0.02)"),
    "models": broken("stage verify = function", "stage verify = forward"),
    "edge-ends": broken("edge verify -> train", "edge verfy -> train"),
    "unique-edges": LEGAL + "edge verify -> train: rewards distance 1\n",
    "distance": broken("edge verify -> train: rewards", "edge verify -> train: rewards distance -1"),
    "causality": broken("sync -> generate: weights distance 1", "sync -> generate: weights"),
    "chunks": broken("edge train -> sync: weights", "edge train -> sync: weights chunks 2"),
    "fused": broken("(cpu_seconds_per_sample = 0.02)", '(fused = "both")').replace(
        "stage sync = sync of actor", 'stage sync = sync of actor (fused = "both")'
    ),
    "weight-source": broken("edge verify -> train: rewards", "edge verify -> train: weights"),
    "weight-target": broken("generate of actor", "generate of judge"),
    "one-weight-source": LEGAL + "edge train -> generate: weights distance 1\n",
    "trained-weights": LEGAL + "stage values = forward of actor on 0\n",
    "train-self-edge": broken("train -> train: weights distance 1", "train -> train: weights distance 2"),
    "sync-shape": broken("edge sync -> generate", "edge train -> generate"),
    "tree": broken("tree 0 0 0", "tree 0 2 0"),
    "mesh-domain": broken("on 0 2", "on 0 3"),
    "all-placed": broken(" on 0 2", ""),
    "layout-fields": broken("{tp: 1 2}", "{tensor_parallel: 1 2}"),
    "layout-values": broken('"full"', '"everything"'),
    "rewrites": broken("insert-transitions exact", "insert-transitions perfect"),
}


def test_a_legal_graph_is_accepted() -> None:
    verify(parse_graph(LEGAL))


def test_every_rule_of_the_table_is_tried() -> None:
    assert list(BROKEN) == [rule.name for rule in RULES]


@pytest.mark.parametrize("rule", BROKEN)
def test_the_rule_refuses_the_graph_that_breaks_it(rule: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"[{rule}]")):
        verify(parse_graph(BROKEN[rule]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (broken("{tp: 1 2}", ""), None),
        (broken("verify: sequences chunks 4", "verify: sequences chunks 0"), "got chunks 0"),
        (broken("on 0 1 ", "on 1 0 "), "got meshes (1, 0) in a tree of 3 nodes"),
        (broken("(cpu_seconds_per_sample = 0.02)", "(a = inf)"), "got a = inf"),
        (broken("{tp: 1 2}", "{tp: 1 1}"), "got tp: (1, 1)"),
        (broken("verify = function", "verify = function of actor"), "got a function of `actor`"),
        (broken("stage train = train", "stage train = forward"), "weights come from train or sync stages"),
        (LEGAL + 'stage base = forward of actor (adapter = "off") on 0\n', None),
        (LEGAL + "stage spare = sync of actor\nedge train -> spare: weights\n", "got 1 sources and 0 targets"),
    ],
)
def test_the_values_that_break_a_rule_are_printed(text: str, says: str | None) -> None:
    if says is None:
        verify(parse_graph(text))
        return
    with pytest.raises(InputError, match=re.escape(says)):
        verify(parse_graph(text))


def test_the_message_points_at_the_users_line_and_guesses_what_was_meant() -> None:
    with pytest.raises(InputError) as caught:
        verify(parse_graph(BROKEN["layout-fields"], "small.rpeg"))
    assert str(caught.value).startswith("small.rpeg:3:7: stage `generate`: ")
    with pytest.raises(InputError, match="did you mean `verify`"):
        verify(parse_graph(BROKEN["edge-ends"]))
