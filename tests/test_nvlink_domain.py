"""Machines whose NVLink domain spans nodes: what stays inside runs at NVLink speed, what leaves uses network cards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.cost.collectives import COLLECTIVES, collective_seconds, nvlink_members
from rpegc.hardware import load_machine, machine_from, machine_names

MACHINES = {name: load_machine(name) for name in machine_names()}
WIDE = sorted(name for name, machine in MACHINES.items() if machine.nodes_per_domain > 1)
NVL72 = MACHINES["gb200-nvl72"]

BEFORE = [
    ("gh200-alps", "all_reduce", 134217728, 8, 4, 0.0019116248129816937),
    ("gh200-alps", "all_gather", 1e9, 64, 4, 0.010883533595279419),
    ("gh200-alps", "all_to_all", 1e8, 4, 4, 0.000236407126258543),
    ("gh200-alps", "all_gather", 16e9, 1024, 4, 0.2170467128803124),
    ("h100-dgx", "reduce_scatter", 1e9, 64, 8, 0.0030487919689044683),
    ("h100-dgx", "all_reduce", 1048576, 8, 8, 2.6094291510882895e-05),
    ("h100-dgx", "send", 1e7, 2, 1, 0.00032378307647710835),
]
"""Seconds of machines whose NVLink ends at the node, as priced before domains were known."""


def test_the_catalogue_has_domains_wider_than_a_node():
    assert WIDE == ["gb200-nvl72", "gb300-nvl72", "gh200-nvl32"]
    assert [(level.name, level.gpus) for level in NVL72.levels[1:4]] == [
        ("node", 4),
        ("nvlink_domain", 72),
        ("rack", 576),
    ]
    assert MACHINES["gh200-nvl32"].figure("nvlink_domain_gpus").value == 32


@pytest.mark.parametrize(("name", "kind", "size", "members", "local", "seconds"), BEFORE)
def test_a_machine_without_such_a_domain_costs_what_it_cost(name, kind, size, members, local, seconds):
    assert float(collective_seconds(MACHINES[name], kind, size, members, local)) == pytest.approx(seconds, rel=1e-13)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(WIDE),
    kind=st.sampled_from(COLLECTIVES),
    size=st.floats(1, 1e11),
    members=st.integers(2, 72),
    local=st.integers(1, 4),
)
def test_inside_a_domain_it_does_not_matter_on_how_many_nodes_the_members_are(name, kind, size, members, local):
    machine = MACHINES[name]
    local = min(local, machine.gpus_per_node)
    members = min(members, local * machine.nodes_per_domain)
    spread, dense = (
        collective_seconds(machine, kind, size, members, per_node) for per_node in (local, machine.gpus_per_node)
    )
    assert spread == dense


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(WIDE),
    kind=st.sampled_from(COLLECTIVES),
    size=st.floats(1, 1e11),
    inside=st.floats(0, 1),
    beyond=st.integers(1, 200),
)
def test_leaving_the_domain_never_saves_time(name, kind, size, inside, beyond):
    machine = MACHINES[name]
    local, wide = machine.gpus_per_node, machine.nodes_per_domain
    nodes = np.array([1 + round(inside * (wide - 1)), wide + beyond])
    within, outside = collective_seconds(machine, kind, size, nodes * local, local)
    assert outside >= within


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(WIDE),
    kind=st.sampled_from(COLLECTIVES),
    size=st.floats(1, 1e11),
    domains=st.integers(1, 40),
    further=st.integers(0, 40),
)
def test_more_whole_domains_never_take_less_time(name, kind, size, domains, further):
    machine = MACHINES[name]
    members = np.array([domains, domains + further]) * machine.nvlink_domain_gpus
    few, many = collective_seconds(machine, kind, size, members, machine.gpus_per_node)
    assert many >= few * (1 - 1e-12)


def test_nvlink_is_an_order_faster_than_the_network_cards():
    for kind in ("all_to_all", "send"):
        inside, outside = collective_seconds(NVL72, kind, 1e9, [2, 2], 1, nodes=[18, 19])
        assert outside > 8 * inside, kind
    eight_nodes = collective_seconds(MACHINES["b200"], "all_to_all", 1e9, 64, 8)
    assert eight_nodes > 8 * collective_seconds(NVL72, "all_to_all", 1e9, 64, 4)


def test_a_job_over_two_domains_sends_half_of_an_all_to_all_through_its_cards():
    seconds = collective_seconds(NVL72, "all_to_all", 1e9, 144, 4)
    assert seconds == pytest.approx(0.5e9 / (0.85 * 50e9), rel=0.05)


def test_members_that_lie_nodes_apart_fill_a_domain_sooner():
    assert nvlink_members(NVL72, 18, 1).item() == 18
    assert nvlink_members(NVL72, 18, 0.5).item() == 9  # every second node holds one
    assert nvlink_members(NVL72, 8, 0.25).item() == 4
    assert nvlink_members(MACHINES["gh200-alps"], 8, 0.25).item() == 1
    near, far = collective_seconds(NVL72, "all_to_all", 1e9, 18, [1.0, 0.5])
    assert far > 5 * near


@pytest.mark.parametrize(("gpus", "links", "why"), [(6, "switch", "whole nodes"), (8, "direct", "direct links end")])
def test_a_domain_is_of_whole_nodes_behind_a_switch(gpus, links, why):
    note = ["spec", "note"]
    machine = {"gpus_per_node": [4, *note], "nvlink_domain_gpus": [gpus, *note], "nodes_per_rack": [1, *note]}
    machine |= {"system_nodes": [0, *note], "title": "x", "site": "generic", "links": links}
    with pytest.raises(ValueError, match=f"nvlink_domain_gpus: .*{why}"):
        machine_from("broken", {"sources": {"note": "x"}, "machine": machine})
