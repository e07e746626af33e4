"""Seconds of collectives on the hierarchy GPU, node, NVLink domain, rack, system. Vectorised, broadcasting.

Inside a node, or inside an NVLink domain that spans nodes, a collective of n members costs

    latency + ramp * S/(S + S_half) + f(n) * S / B(n)

S is the buffer as NCCL counts it, f(n) S what each link carries, B(n) the bus bandwidth. The ramp is what makes one
alpha-beta line fail: small messages use a low-latency protocol, large ones pay the filling of a bulk pipeline.
Between nodes the same form holds with the NICs as links; an all-reduce is hierarchical (reduce-scatter in the node,
exchange over one NIC per member, all-gather in the node), an all-gather or reduce-scatter is one ring. Where NVLink
domains span nodes they take the place of nodes in all of this: network cards only carry what leaves a domain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rpegc.hardware import Figure, Machine
from rpegc.target import BoolArray, FloatArray

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send")

NVLS_MEMBERS = Figure(
    4.0,
    "measured",
    "NCCL reduces inside the switch above 4 GPUs: github.com/stas00/ml-engineering network README @744d01e",
)
"""Members above which an all-reduce inside a node takes `all_reduce_gain`."""

_CURVE = {"broadcast": "all_gather", "send": "all_gather"}
"""Kinds without a measured sweep of their own take latency and ramp of another."""


def collective_seconds(
    machine: Machine,
    kind: str,
    bytes: ArrayLike,
    members: ArrayLike,
    members_per_node: ArrayLike,
    nodes: ArrayLike | None = None,
) -> FloatArray:
    """Seconds of one collective of `members` ranks, `members_per_node` of them on each node; arguments broadcast.

    `kind` is one of `COLLECTIVES`. `bytes` is the full buffer of a rank: the gathered one for all-gather and
    reduce-scatter, the sent one for all-to-all and send. `nodes` is how many nodes lie between the first and the last
    member (default: as many as hold members); above `nodes_per_rack` the group pays for crossing racks. A
    `members_per_node` below 1 says that members lie several nodes apart, which NVLink domains over nodes ask about.
    Zero for one member or no bytes. Source: fitted to NCCL sweeps of aiconfigurator and ml-engineering inside a node
    (H100, H200, A100) and of cscs-docs on two Alps nodes; other networks are assumed, see the catalogue.
    """
    if kind not in COLLECTIVES:
        raise ValueError(f"unknown collective {kind}; one of {', '.join(COLLECTIVES)}")
    size, count, local = (np.asarray(value, dtype=np.float64) for value in (bytes, members, members_per_node))
    size, count, local = np.broadcast_arrays(size, count, local)
    count, density = np.maximum(count, 1.0), local
    local = np.clip(local, 1.0, np.minimum(count, machine.gpus_per_node))
    group_nodes = np.ceil(count / local)
    span = group_nodes if nodes is None else np.maximum(group_nodes, np.asarray(nodes, dtype=np.float64))
    if machine.nodes_per_domain == 1:
        islands, island = group_nodes, local
    else:
        density = np.where(span > group_nodes, count / span, np.minimum(density, local))
        islands = np.ceil(count / nvlink_members(machine, count, density))
        island = count / islands  # a job over several domains is given equal parts of them
    inside = _domain_seconds(machine, kind, size, island)
    between = _network_seconds(machine, kind, size, count, islands, island, span > machine.nodes_per_rack)
    return np.where((count <= 1) | (size <= 0), 0.0, np.where(islands > 1, between, inside))


def nvlink_members(machine: Machine, members: ArrayLike, members_per_node: ArrayLike) -> FloatArray:
    """Return how many members of a group share an NVLink domain when `members_per_node` (also below 1) share a node.

    The group starts where a domain starts. Where NVLink ends at the node that is `members_per_node`, at least 1.
    """
    count, density = np.asarray(members, dtype=np.float64), np.asarray(members_per_node, dtype=np.float64)
    held = density * machine.nodes_per_domain
    return np.clip(np.floor(held + 1e-9), 1.0, count)  # 0.25 * 4 may come as 0.99...


def bus_bandwidth(machine: Machine, kind: str, members: ArrayLike) -> FloatArray:
    """Bytes per second that each link of a node carries in a collective of `members` GPUs of its NVLink domain.

    Through a switch, B (1 - pair_loss/n), and `all_reduce_gain` of that for an all-reduce of more than four members.
    Over direct links a member reaches n-1 peers, one link each: B grows with n, so a pair is slower than a full node.
    """
    count = np.maximum(np.asarray(members, dtype=np.float64), 2.0)
    pair = machine.pair_bandwidth.value * machine.pair_efficiency.value
    if kind == "send":
        return np.full(count.shape, pair)
    curve = machine.curves[_CURVE.get(kind, kind)]
    if machine.links == "direct":
        return np.minimum(pair * (count - 1.0), curve.bandwidth.value)
    if kind == "broadcast":  # one direction only: a pair loses nothing
        count = np.full(count.shape, float(machine.nvlink_domain_gpus))
    bandwidth = curve.bandwidth.value * (1.0 - curve.pair_loss.value / count)
    in_switch = (count > NVLS_MEMBERS.value) & (kind == "all_reduce")
    return bandwidth * np.where(in_switch, machine.all_reduce_gain.value, 1.0)


def _domain_seconds(machine: Machine, kind: str, size: FloatArray, members: FloatArray) -> FloatArray:
    """Seconds inside one NVLink domain."""
    curve = machine.curves[_CURVE.get(kind, kind)]
    latency = curve.latency_s.value + curve.latency_per_member_s.value * np.maximum(members - 2.0, 0.0)
    ramp = curve.ramp_s.value * size / (size + curve.ramp_bytes.value)
    return latency + ramp + _ring_share(kind, members) * size / bus_bandwidth(machine, kind, members)


def _network_seconds(
    machine: Machine,
    kind: str,
    size: FloatArray,
    members: FloatArray,
    nodes: FloatArray,
    local: FloatArray,
    crosses_racks: BoolArray,
) -> FloatArray:
    """Seconds of a group with `local` members on each of several nodes: latency, ramp, and the slower level.

    Where NVLink domains span nodes, `nodes` are domains and `local` the members in each.
    """
    network = machine.network
    rate = network.nic_bandwidth.value * network.nic_efficiency.value
    nic = rate * np.where(crosses_racks, network.rack_bandwidth_share.value, 1.0)
    if kind == "all_reduce":
        per_nic = 2.0 * (nodes - 1.0) / nodes * size / local
        in_node = 2.0 * (local - 1.0) / local * size
        exposed = network.intra_exposed.value
    elif kind == "all_to_all":
        per_nic = size * (members - local) / members
        in_node = size * (local - 1.0) / members
        exposed = 0.0
    else:  # a ring (or one pair): the same stream passes NICs and links of the node
        per_nic = _ring_share(kind, members) * size / (1.0 if kind == "send" else local)
        in_node = np.where(local > 1, _ring_share(kind, members) * size, 0.0) * (kind != "send")
        exposed = 0.0
    outer, inner = per_nic / nic, in_node / _ring_bandwidth(machine, kind, local)
    levels = np.maximum(outer, inner) + exposed * np.minimum(outer, inner)
    latency, share = _network_latency(machine, kind, members, local, nodes)
    queue = size if kind in ("all_to_all", "send") else size / local
    ramp = share * network.ramp_s.value * (queue / (queue + network.ramp_bytes.value)) ** network.ramp_exponent.value
    return latency + np.where(crosses_racks, network.rack_latency_s.value, 0.0) + ramp + levels


def _network_latency(
    machine: Machine, kind: str, members: FloatArray, local: FloatArray, nodes: FloatArray
) -> tuple[FloatArray, float]:
    """Return the latency between nodes and the share of the all-reduce ramp that this kind pays.

    The network's latency is that of nodes; a domain over nodes adds what its further members take inside it.
    """
    network = machine.network
    per_member = machine.curves[_CURVE.get(kind, kind)].latency_per_member_s.value
    wider = per_member * np.maximum(local - machine.gpus_per_node, 0.0)
    if kind == "all_reduce":
        doublings = np.log2(nodes / 2.0)
        return network.latency_s.value + network.latency_per_doubling_s.value * doublings + wider, 1.0
    share = network.one_way_share.value
    if kind == "all_to_all":
        further = machine.curves["all_gather"].latency_per_member_s.value * np.maximum(members - 2.0 * local, 0.0)
    elif kind == "send":
        further = np.zeros(nodes.shape)
    else:
        further = (nodes - 2.0) * (network.latency_per_hop_s.value + per_member * (local - 1.0))
    return share * network.latency_s.value + further + wider, share


def _ring_share(kind: str, members: FloatArray) -> FloatArray:
    """Share of the buffer that each link carries: (n-1)/n, twice that for an all-reduce, all of it for one source."""
    if kind in ("broadcast", "send"):
        return np.ones(members.shape)
    return (2.0 if kind == "all_reduce" else 1.0) * (members - 1.0) / members


def _ring_bandwidth(machine: Machine, kind: str, members: FloatArray) -> FloatArray:
    """Bus bandwidth without reduction inside the switch, which NCCL's hierarchical forms are not credited with."""
    return bus_bandwidth(machine, "all_gather" if kind == "all_reduce" else kind, members)
