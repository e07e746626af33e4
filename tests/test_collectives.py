import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.cost.collectives import COLLECTIVES, bus_bandwidth, collective_seconds
from rpegc.hardware import load_machine, machine_names

ALPS, H100 = load_machine("gh200-alps"), load_machine("h100-dgx")
KIB, MIB = 2**10, 2**20


def measured_errors(machine_name, least_bytes):
    path = Path(__file__).parent / "data" / "measured" / "collectives.csv"
    machine, found = load_machine(machine_name), []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            members, size = int(row["members"]), int(row["size_bytes"])
            if row["machine"] == machine_name and size >= least_bytes:
                local = members // int(row["nodes"])
                seconds = collective_seconds(machine, row["collective"], size, members, local)
                found.append(abs(float(seconds) / (float(row["time_us"]) * 1e-6) - 1))
    return np.array(found)


@pytest.mark.parametrize(
    ("machine", "rows", "median", "p90"),
    [
        ("h100-dgx", 72, 0.04, 0.12),
        ("h200-dgx", 98, 0.055, 0.23),
        ("a100-80g", 91, 0.055, 0.24),
        ("gh200-alps", 20, 0.055, 0.19),
    ],
)
def test_collectives_match_published_sweeps_from_64_kib_on(machine, rows, median, p90):
    error = measured_errors(machine, 64 * KIB)
    assert len(error) == rows
    assert np.median(error) < median
    assert np.quantile(error, 0.9) < p90


def test_small_messages_between_two_alps_nodes_match_too():
    assert np.median(measured_errors("gh200-alps", 8)) < 0.06


def test_the_three_points_that_no_single_line_fits_on_alps():
    seconds = collective_seconds(ALPS, "all_reduce", [8, MIB, 128 * MIB], 8, 4)
    assert seconds[0] == pytest.approx(17.9e-6, rel=0.05)
    assert seconds[1] == pytest.approx(164e-6, rel=0.2)  # measured: less than the 170e-6 of half the size
    assert seconds[2] == pytest.approx(1916e-6, rel=0.05)


@pytest.mark.parametrize("name", machine_names())
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_one_member_or_no_bytes_takes_no_time(name, kind):
    machine = load_machine(name)
    assert collective_seconds(machine, kind, 1e9, 1, 1) == 0
    assert collective_seconds(machine, kind, 0, 8, 4) == 0


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(machine_names()),
    kind=st.sampled_from(COLLECTIVES),
    size=st.floats(1, 1e11),
    growth=st.floats(1, 1e3),
    nodes=st.integers(1, 3000),
    local=st.integers(1, 8),
)
def test_more_bytes_never_take_less_time(name, kind, size, growth, nodes, local):
    machine = load_machine(name)
    local = min(local, machine.gpus_per_node)
    small, large = collective_seconds(machine, kind, [size, size * growth], nodes * local, local)
    assert large >= small


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(machine_names()),
    kind=st.sampled_from(COLLECTIVES),
    size=st.floats(1, 1e11),
    nodes=st.integers(2, 1000),
    further=st.integers(0, 2000),
    local=st.integers(1, 8),
)
def test_more_nodes_never_take_less_time(name, kind, size, nodes, further, local):
    machine = load_machine(name)
    local = min(local, machine.gpus_per_node)
    # In whole NVLink domains: one that is cut off in the middle is shared out evenly, which may win back a little.
    counts = np.array([nodes, nodes + further]) * machine.nodes_per_domain
    few, many = collective_seconds(machine, kind, size, counts * local, local)
    assert many >= few * (1 - 1e-12)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("name", ["h100-dgx", "h200-dgx", "a100-80g", "h20"])
def test_more_members_behind_a_switch_never_take_less_time(name, kind):
    members = np.arange(2, 9)
    for size in (KIB, MIB, 512 * MIB):
        seconds = collective_seconds(load_machine(name), kind, size, members, members)
        if kind != "broadcast":  # every member receives the same bytes: only the latency grows
            assert np.all(np.diff(seconds) > 0)
        assert seconds[0] < seconds[-1] * 1.25


def test_direct_links_make_a_pair_slower_than_a_full_node_and_a_switch_does_not():
    pair, full = collective_seconds(ALPS, "all_gather", 1e9, [2, 4], [2, 4])
    assert pair > 1.5 * full
    pair, full = collective_seconds(H100, "all_gather", 1e9, [2, 8], [2, 8])
    assert pair < full
    assert bus_bandwidth(ALPS, "all_gather", 4) == pytest.approx(3 * bus_bandwidth(ALPS, "all_gather", 2))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "broadcast"])
def test_each_member_on_a_node_brings_its_own_network_card(kind):
    one, four = collective_seconds(ALPS, kind, 1e9, [64, 64], [1, 4])
    assert 2.5 < one / four < 4.5


def test_leaving_the_node_costs_and_leaving_the_cabinet_costs_again():
    for kind in COLLECTIVES:
        inside, between = collective_seconds(ALPS, kind, 1e9, 4, [4, 2])
        assert between > inside, kind
        near, far = collective_seconds(ALPS, kind, 1e9, 8, 4, nodes=[2, 113])
        assert far > 1.1 * near, kind


def test_every_gpu_sends_through_its_own_card_in_an_all_to_all():
    seconds = collective_seconds(ALPS, "all_to_all", 1e9, 8, 4)
    assert seconds == pytest.approx(0.5e9 / (0.93 * 25e9), rel=0.05)


def test_arguments_broadcast():
    assert collective_seconds(ALPS, "all_reduce", np.ones((3, 1)), [1, 4, 8], 4).shape == (3, 3)


def test_an_unknown_collective_is_named():
    with pytest.raises(ValueError, match="unknown collective allgather"):
        collective_seconds(ALPS, "allgather", 1, 2, 2)
