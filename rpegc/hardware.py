"""Machines and what is known about them, each figure with provenance and source. SI units: bytes, seconds, FLOP/s.

The catalogue (`rpegc/catalog/hardware/*.yaml`) holds one file a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from rpegc.errors import InputError, SourcePosition, guess

PROVENANCES = ("measured", "fitted", "spec", "assumed")
"""How a figure is known, see `rpegc.cost.table.PROVENANCES`; a test keeps the two equal."""

COUNTS = ("gpus_per_node", "nvlink_domain_gpus", "nodes_per_rack", "system_nodes")
"""The whole numbers of a machine. A file may leave `nvlink_domain_gpus` out where NVLink ends at the node."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, how it is known (one of `PROVENANCES`) and where it comes from."""

    value: float
    provenance: str
    source: str

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU.

    `peak_*` dense FLOP/s of the data sheet; `hbm_bytes` what the driver reports; `hbm_bandwidth` B/s of the data sheet,
    `hbm_achieved` of element-wise kernels; `l2_*` size and bandwidth of the cache as a GEMM sees them. `gemm_*`:
    asymptote of short kernel runs and in training (FLOP/s), B/s of a bandwidth-bound GEMM, launch seconds, and the
    curve of `rpegc.cost.gemm`. `attention_*`: asymptotes of short kernel runs and in training (FLOP/s, causal forward),
    sequence length and waves at half of the asymptote, launch seconds, and the factor on the rate at head size 64.
    `*_power_loss`: how much longer kernels of many milliseconds run than short ones. `kv_write_*`: what an engine takes
    to put keys and values into its cache. `eff_weights`, `eff_kv`: shares of `hbm_bandwidth` reached by reads of
    weights and KV cache in decoding. `power_limit_watts`: as the site sets it.
    """

    name: str
    multiprocessors: Figure
    peak_bf16: Figure
    peak_fp8: Figure
    hbm_bytes: Figure
    hbm_bandwidth: Figure
    hbm_achieved: Figure
    gemm_asymptote: Figure
    gemm_sustained: Figure
    gemm_bandwidth: Figure
    gemm_launch_s: Figure
    gemm_tile_half: Figure
    gemm_tile_launch_s: Figure
    gemm_tile_s: Figure
    gemm_split_traffic: Figure
    gemm_power_loss: Figure
    l2_bytes: Figure
    l2_bandwidth: Figure
    attention_table_asymptote: Figure
    attention_forward_asymptote: Figure
    attention_table_s0: Figure
    attention_table_w0: Figure
    attention_training_s0: Figure
    attention_launch_s: Figure
    attention_power_loss: Figure
    kv_write_head_s: Figure
    kv_write_token_s: Figure
    kv_write_bandwidth: Figure
    attention_small_head_factor: Figure
    eff_weights: Figure
    eff_kv: Figure
    power_limit_watts: Figure


@dataclass(frozen=True, slots=True)
class CollectiveCurve:
    """Time of one collective inside an NVLink domain (mostly a node), see `rpegc.cost.collectives`.

    `latency_s` of two members, `latency_per_member_s` for each further one; `ramp_s` is what the bulk protocol costs
    on top, half of it at `ramp_bytes`; `bandwidth` is the bus bandwidth of many members (B/s), of which n members
    reach the share 1 - `pair_loss` / n.
    """

    latency_s: Figure
    latency_per_member_s: Figure
    ramp_s: Figure
    ramp_bytes: Figure
    bandwidth: Figure
    pair_loss: Figure


@dataclass(frozen=True, slots=True)
class Network:
    """The network between nodes, see `rpegc.cost.collectives`.

    `nic_bandwidth` B/s per GPU and direction of the data sheet, `nic_efficiency` the share that NCCL reaches.
    `latency_s`, `ramp_s`, `ramp_bytes` (per NIC) and `ramp_exponent` describe an all-reduce over two nodes;
    `one_way_share` is what an all-gather or reduce-scatter takes of its latency and ramp. `latency_per_doubling_s` is
    added for each doubling of the nodes (trees), `latency_per_hop_s` for each further node (rings) or remote peer
    (all-to-all). `intra_exposed` is the share of the shorter of the two levels that the longer does not hide. Groups
    over several racks pay `rack_latency_s` more and reach `rack_bandwidth_share` of the bandwidth.
    """

    nic_bandwidth: Figure
    nic_efficiency: Figure
    latency_s: Figure
    ramp_s: Figure
    ramp_bytes: Figure
    ramp_exponent: Figure
    one_way_share: Figure
    latency_per_doubling_s: Figure
    latency_per_hop_s: Figure
    intra_exposed: Figure
    rack_latency_s: Figure
    rack_bandwidth_share: Figure


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the hierarchy: its name and how many GPUs it holds (0: as many as there are nodes)."""

    name: str
    gpus: int


@dataclass(frozen=True, slots=True, eq=False)  # equal is the same: machines come from a cache, and can be keys
class Machine:
    """A cluster of equal nodes.

    `gpus_per_node`, `nodes_per_rack`, `system_nodes` (0 if the machine has no fixed size) are counts; `counts` holds
    them with provenance. `nvlink_domain_gpus` is how many GPUs NVLink joins: those of a node, or of several whole
    nodes behind one switch. `links` is "switch" (every GPU of the domain reaches every other at full speed) or
    "direct"; `pair_bandwidth` B/s per pair and direction, of which `pair_efficiency` is reached. `all_reduce_gain`
    multiplies the all-reduce bandwidth of more than four members (reduction inside the switch). `host_*` per node,
    `*_device_bandwidth` B/s per GPU as measured where known, `dev_shm_bytes` per node. `usd_per_gpu_hour` is None
    where no price is known. `site` names the site profile that fits by default.
    """

    name: str
    title: str
    site: str
    accelerator: Accelerator
    gpus_per_node: int
    nvlink_domain_gpus: int
    nodes_per_rack: int
    system_nodes: int
    counts: Mapping[str, Figure]
    links: str
    pair_bandwidth: Figure
    pair_efficiency: Figure
    all_reduce_gain: Figure
    curves: Mapping[str, CollectiveCurve]
    network: Network
    host_bytes: Figure
    host_cores: Figure
    host_to_device_bandwidth: Figure
    device_to_host_bandwidth: Figure
    dev_shm_bytes: Figure
    usd_per_gpu_hour: Figure | None

    @property
    def nic_bandwidth(self) -> Figure:
        """Bytes per second, per GPU and direction, of the data sheet."""
        return self.network.nic_bandwidth

    @property
    def nic_efficiency(self) -> Figure:
        """Share of `nic_bandwidth` that NCCL reaches."""
        return self.network.nic_efficiency

    @property
    def nodes_per_domain(self) -> int:
        """Nodes that one NVLink domain spans."""
        return self.nvlink_domain_gpus // self.gpus_per_node

    @property
    def levels(self) -> tuple[Level, ...]:
        """The hierarchy from one GPU to the whole system; an NVLink domain is a level where it spans nodes."""
        domain = (Level("nvlink_domain", self.nvlink_domain_gpus),) if self.nodes_per_domain > 1 else ()
        return (
            Level("gpu", 1),
            Level("node", self.gpus_per_node),
            *domain,
            Level("rack", self.gpus_per_node * self.nodes_per_rack),
            Level("system", self.gpus_per_node * self.system_nodes),
        )

    def figures(self) -> dict[str, Figure]:
        """Return every figure by name, for example `host_bytes`, `accelerator.hbm_bytes`, `all_gather.bandwidth`."""
        parts: dict[str, Any] = {"": self, "accelerator.": self.accelerator, "network.": self.network}
        parts |= {f"{kind}.": curve for kind, curve in self.curves.items()}
        named = {prefix + name: figure for prefix, part in parts.items() for name, figure in _own_figures(part)}
        return {**self.counts, **named}

    def figure(self, name: str) -> Figure:
        """Return a figure by its name in `figures`; `accelerator.` and `network.` may be left out."""
        table = self.figures()
        for prefix in ("", "accelerator.", "network."):
            if prefix + name in table:
                return table[prefix + name]
        raise KeyError(f"{self.name} has no figure {name}")


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """A part of a cluster whose nodes are equal: its name ("" where the cluster has no parts), machine and nodes."""

    name: str
    machine: Machine
    nodes: int

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.nodes * self.machine.gpus_per_node


def machine_names() -> tuple[str, ...]:
    """Return the names of all machines of the catalogue, sorted."""
    files = resources.files("rpegc").joinpath("catalog", "hardware").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_machine(name: str, position: SourcePosition | None = None) -> Machine:
    """Return a machine of the catalogue.

    Raises `InputError` at `position`, with a guess, if the catalogue has no machine of this name.
    """
    names = machine_names()
    if name not in names:
        raise InputError(f"unknown hardware `{name}`", position, guess(name, names))
    return _read(name)


@cache
def _read(name: str) -> Machine:
    from ruamel.yaml import YAML  # imported here: commands that price nothing start without it

    text = resources.files("rpegc").joinpath("catalog", "hardware", f"{name}.yaml").read_text(encoding="utf-8")
    return machine_from(name, YAML(typ="safe").load(text))


def machine_from(name: str, document: Mapping[str, Any]) -> Machine:
    """Build a machine from a catalogue document; raises `ValueError` where figures are missing, unknown or unsourced.

    A figure is written `[value, provenance, source key]`; `sources` maps keys to sources.
    """
    sources = document["sources"]
    machine = dict(document["machine"])
    machine.setdefault("nvlink_domain_gpus", machine["gpus_per_node"])
    counts = {key: _figure(key, machine.pop(key), sources) for key in COUNTS}
    plain: dict[str, Any] = {key: machine.pop(key) for key in ("title", "site", "links")}
    plain |= {key: int(count.value) for key, count in counts.items()}
    _check_domain(plain["gpus_per_node"], plain["nvlink_domain_gpus"], plain["links"])
    return Machine(
        name=name,
        accelerator=Accelerator(
            name=document["accelerator"].get("name", ""), **_figures(Accelerator, document["accelerator"], sources)
        ),
        curves={
            kind: CollectiveCurve(**_figures(CollectiveCurve, curve, sources))
            for kind, curve in document["collectives"].items()
        },
        network=Network(**_figures(Network, document["network"], sources)),
        counts=counts,
        **plain,
        **_figures(Machine, machine, sources),
    )


def _check_domain(gpus_per_node: int, domain_gpus: int, links: str) -> None:
    if domain_gpus < gpus_per_node or domain_gpus % gpus_per_node:
        raise ValueError(f"nvlink_domain_gpus: {domain_gpus} GPUs are no whole nodes of {gpus_per_node}")
    if domain_gpus > gpus_per_node and links != "switch":
        raise ValueError(f"nvlink_domain_gpus: direct links end at the node of {gpus_per_node}, not at {domain_gpus}")


def _figures(kind: type, entries: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
    wanted = {field.name: str(field.type) for field in fields(kind) if str(field.type).startswith("Figure")}
    given = [key for key in entries if key != "name"]
    if sorted(wanted) != sorted(given):
        raise ValueError(f"{kind.__name__}: missing or unknown figures {sorted(set(wanted) ^ set(given))}")
    unknown = [key for key, annotation in wanted.items() if entries[key] is None and "None" in annotation]
    return {key: None if key in unknown else _figure(key, entries[key], sources) for key in wanted}


def _figure(key: str, entry: Any, sources: Mapping[str, str]) -> Figure:
    if not isinstance(entry, list) or len(entry) != 3:
        raise ValueError(f"{key}: a figure is [value, provenance, source key], not {entry}")
    value, provenance, source = entry
    if provenance not in PROVENANCES:
        raise ValueError(f"{key}: provenance {provenance} is none of {', '.join(PROVENANCES)}")
    if source not in sources:
        raise ValueError(f"{key}: source {source} is not listed under `sources`")
    return Figure(float(value), provenance, str(sources[source]))


def _own_figures(part: Any) -> Iterator[tuple[str, Figure]]:
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Figure):
            yield field.name, value
