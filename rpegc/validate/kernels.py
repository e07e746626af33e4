"""The kernel and collective problems: rows of published sweeps, the constants of each machine's curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rpegc.cost.collectives import COLLECTIVES, collective_seconds
from rpegc.cost.gemm import gemm_seconds
from rpegc.cost.roofline import attention_forward_seconds
from rpegc.hardware import Machine, load_machine
from rpegc.target import FloatArray, IntArray
from rpegc.validate.facts import gpu_of
from rpegc.validate.refit import Constant, Problem
from rpegc.validate.table import Folder, Row, Skipped, SkipRow, number, whole
from rpegc.validate.training_rows import with_values

GEMM_LEAST_ROWS = 1024
ATTENTION_LEAST_FLOPS = 1e10
COLLECTIVE_LEAST_BYTES = 64 * 2**10
DISTURBED = 1.1
"""A row is disturbed if it took so many times what a product took that contains its own; less is noise of a repeat."""

SHAPE_PARTS = 5
"""Into so many parts the shapes of a kernel table are dealt; one after the other is left out."""

_SYSTEMS = {"h100_sxm": "h100-dgx", "a100_sxm": "a100-80g", "h200_sxm": "h200-dgx"}
_GEMM = (
    "gemm_asymptote", "gemm_bandwidth", "gemm_launch_s", "gemm_tile_half", "gemm_tile_launch_s", "gemm_tile_s",
    "gemm_split_traffic", "gemm_power_loss", "l2_bytes", "l2_bandwidth",
)  # fmt: skip
_ATTENTION = (
    "attention_table_asymptote", "attention_table_s0", "attention_table_w0", "attention_launch_s",
    "attention_power_loss", "kv_write_head_s", "kv_write_token_s", "kv_write_bandwidth",
)  # fmt: skip
_CURVE = ("latency_s", "latency_per_member_s", "ramp_s", "ramp_bytes", "bandwidth", "pair_loss")
_NETWORK = ("nic_efficiency", "latency_s", "ramp_s", "ramp_bytes", "ramp_exponent", "intra_exposed")
_SPREAD = 1.0
"""Weak: a kernel table determines its own constants."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of one family in columns; `parts` are left out one after the other."""

    row_ids: tuple[str, ...]
    sources: tuple[str, ...]
    parts: tuple[str, ...]
    problem: Problem
    skipped: tuple[Skipped, ...]


def gemm_sweep(folder: Folder) -> Sweep:
    """Return matrix products from m = 1024; what is left out is a fifth of the (n, k) pairs."""
    columns = ("system", "m", "n", "k", "dtype", "latency_ms")
    rows, skipped = _rows(folder, r"kernel_aic_gemm\w*\.csv", columns, lambda row: number(row, "m") >= GEMM_LEAST_ROWS)
    rows, disturbed = _undisturbed(rows, ("m", "n", "k"))
    skipped = [*skipped, *disturbed]
    m, n, k = (_column(rows, name) for name in ("m", "n", "k"))

    def seconds(machine: Machine, at: IntArray) -> FloatArray:
        return gemm_seconds(machine, m[at], n[at], k[at], sustained=False)

    return _sweep(rows, skipped, _deal([f"{row['n']} x {row['k']}" for row in rows]), _GEMM, seconds)


def attention_sweep(folder: Folder) -> Sweep:
    """Return causal forward passes from 1e10 FLOP; what is left out is a fifth of the head counts."""
    columns = ("system", "phase", "batch_size", "isl", "num_heads", "num_kv_heads", "head_dim", "latency_ms")
    rows, skipped = _rows(
        folder,
        r"kernel_aic_attention\w*\.csv",
        columns,
        lambda row: row["phase"] == "context" and _attention_flops(row) > ATTENTION_LEAST_FLOPS,
    )
    batch, length, heads, kv, dim = (
        _column(rows, name) for name in ("batch_size", "isl", "num_heads", "num_kv_heads", "head_dim")
    )

    def seconds(machine: Machine, at: IntArray) -> FloatArray:
        tokens = batch[at] * length[at]
        return attention_forward_seconds(machine, tokens, heads[at], dim[at], length[at] / 2, kv[at], sustained=False)

    parts = _deal([f"{row['num_heads']} heads {row['num_kv_heads']}" for row in rows])
    return _sweep(rows, skipped, parts, _ATTENTION, seconds)


def _attention_flops(row: Row) -> float:
    return (
        2.0 * number(row, "batch_size") * number(row, "num_heads") * number(row, "head_dim") * number(row, "isl") ** 2
    )


def collective_sweep(folder: Folder) -> Sweep:
    """Return collectives from 64 KiB; what is left out is every third size, over all machines and kinds."""
    columns = ("system", "n_nodes", "n_gpus", "collective", "impl", "size_bytes", "time_us", "notes")
    kept: list[Row] = []
    skipped: list[Skipped] = []
    for name in folder.names(r"comm_\w+\.csv"):
        for row in folder.rows(name, columns):
            try:
                if number(row, "size_bytes") >= COLLECTIVE_LEAST_BYTES and number(row, "time_us"):
                    whole(row, "n_gpus"), whole(row, "n_nodes")
                    kept.append({**row, "machine": _fabric(row), "kind": _kind(row)})
            except SkipRow as reason:
                skipped.append(Skipped(row["row_id"], str(reason)))
    size, members, nodes = (_column(kept, name) for name in ("size_bytes", "n_gpus", "n_nodes"))
    machines = np.array([row["machine"] for row in kept])
    kinds = np.array([row["kind"] for row in kept])
    wanted = _collective_constants(machines, kinds, nodes)
    affects = {
        constant.name: (machines == name) & (((kinds == kind) & (nodes == 1)) if kind != "network" else (nodes > 1))
        for constant, (name, kind, _) in wanted
    }

    def predict(values: Mapping[str, float], at: IntArray) -> FloatArray:
        found = np.zeros(len(at))
        for name in np.unique(machines[at]).tolist():
            machine = _with_curves(load_machine(name), values)
            for kind in COLLECTIVES:
                here = (machines[at] == name) & (kinds[at] == kind)
                if here.any():
                    rows = at[here]
                    local = members[rows] / nodes[rows]
                    found[here] = collective_seconds(machine, kind, size[rows], members[rows], local)
        return found

    measured = _column(kept, "time_us") * 1e-6
    parts = tuple(f"sizes {round(np.log2(value)) % 3}" for value in size.tolist())
    groups = [f"{row['row_id']}" for row in kept]
    problem = Problem(measured, groups, tuple(constant for constant, _ in wanted), affects, predict)
    return Sweep(_ids(kept), _sources(kept), parts, problem, tuple(skipped))


def _collective_constants(
    machines: np.ndarray, kinds: np.ndarray, nodes: FloatArray
) -> list[tuple[Constant, tuple[str, str, str]]]:
    """Return the constants of every curve with rows; positive ones only, since their logarithms are fitted."""
    keys: list[tuple[str, str, str]] = []
    for name in sorted(set(machines.tolist())):
        here = machines == name
        for kind in sorted(set(kinds[here & (nodes == 1)].tolist())):
            keys += [(name, kind, field) for field in _CURVE]
        if (here & (nodes > 1)).any():
            keys += [(name, "network", field) for field in _NETWORK]
    found = []
    for name, kind, field in keys:
        machine = load_machine(name)
        value = getattr(machine.network if kind == "network" else machine.curves[kind], field).value
        if value > 0:
            found.append((Constant(f"{name} {kind} {field}", value, value, _SPREAD), (name, kind, field)))
    return found


def _with_curves(machine: Machine, values: Mapping[str, float]) -> Machine:
    curves = dict(machine.curves)
    network = machine.network
    for name, value in values.items():
        owner, kind, field = name.split(" ")
        if owner == machine.name and kind == "network":
            network = replace(network, **{field: replace(getattr(network, field), value=value)})
        elif owner == machine.name:
            curves[kind] = replace(curves[kind], **{field: replace(getattr(curves[kind], field), value=value)})
    return replace(machine, curves=curves, network=network)


def _fabric(row: Row) -> str:
    if "disabled" in row["impl"]:
        raise SkipRow("the network was misconfigured: its plugin was disabled")
    if row["impl"].startswith("NVSHMEM"):
        raise SkipRow("sent by GPU threads (NVSHMEM), not by NCCL")
    if "NVLS off" in row["impl"] or (row["impl"] == "NCCL ring" and whole(row, "n_gpus") > 4):
        raise SkipRow("NCCL was made to take a slower algorithm than its own choice")
    try:
        return gpu_of({"gpu": row["system"]})
    except SkipRow:
        raise SkipRow(f"no machine of the catalogue has the GPUs of {row['system']}") from None


def _kind(row: Row) -> str:
    kind = {"alltoall": "all_to_all"}.get(row["collective"], row["collective"])
    if kind not in COLLECTIVES:
        raise SkipRow(f"unknown collective {row['collective']}")
    return kind


def _rows(folder: Folder, pattern: str, columns: tuple[str, ...], wanted: object) -> tuple[list[Row], list[Skipped]]:
    assert callable(wanted)
    kept: list[Row] = []
    skipped: list[Skipped] = []
    for name in folder.names(pattern):
        for row in folder.rows(name, columns):
            try:
                if not wanted(row):
                    continue
                number(row, "latency_ms")
                if row["system"] not in _SYSTEMS:
                    raise SkipRow(f"no machine of the catalogue is {row['system']}")
                kept.append({**row, "machine": _SYSTEMS[row["system"]]})
            except SkipRow as reason:
                skipped.append(Skipped(row["row_id"], str(reason)))
    return kept, skipped


def _undisturbed(rows: list[Row], sizes: tuple[str, ...]) -> tuple[list[Row], list[Skipped]]:
    """Split off rows that took longer than a larger product of the same sweep, which holds theirs as a part.

    Zeros fill the smaller product up to the larger one, so it never needs more time: something else took it.
    """
    machines = np.array([row["machine"] for row in rows])
    table = np.stack([_column(rows, name) for name in (*sizes, "latency_ms")], axis=1)
    kept: list[Row] = []
    skipped = []
    for at, row in enumerate(rows):
        larger = np.all(table[:, :-1] >= table[at, :-1], axis=1) & (machines == row["machine"])
        if table[at, -1] > DISTURBED * np.min(table[larger, -1]):
            skipped.append(
                Skipped(row["row_id"], "took longer than a larger product of the same sweep that contains it")
            )
        else:
            kept.append(row)
    return kept, skipped


def _sweep(
    rows: list[Row], skipped: list[Skipped], parts: tuple[str, ...], fields: tuple[str, ...], seconds: object
) -> Sweep:
    """Return the problem of a kernel table whose constants are figures of the accelerator."""
    assert callable(seconds)
    machines = np.array([row["machine"] for row in rows])
    names = sorted(set(machines.tolist()))
    constants, affects = [], {}
    for name in names:
        for field in fields:
            start = getattr(load_machine(name).accelerator, field).value
            constants.append(Constant(f"{name} {field}", start, start, _SPREAD))
            affects[f"{name} {field}"] = machines == name

    def predict(values: Mapping[str, float], at: IntArray) -> FloatArray:
        found = np.zeros(len(at))
        for name in np.unique(machines[at]).tolist():
            own = {key.split(" ")[1]: value for key, value in values.items() if key.split(" ")[0] == name}
            here = machines[at] == name
            found[here] = seconds(with_values(load_machine(name), own), at[here])
        return found

    problem = Problem(_column(rows, "latency_ms") * 1e-3, _ids(rows), tuple(constants), affects, predict)
    return Sweep(_ids(rows), _sources(rows), parts, problem, tuple(skipped))


def _deal(labels: list[str]) -> tuple[str, ...]:
    """Deal labels into parts, in the order of their names: equal labels stay together."""
    order = {label: index for index, label in enumerate(sorted(set(labels)))}
    return tuple(f"part {order[label] % SHAPE_PARTS}" for label in labels)


def _column(rows: list[Row], name: str) -> FloatArray:
    return np.array([number(row, name) for row in rows], dtype=np.float64)


def _ids(rows: list[Row]) -> tuple[str, ...]:
    return tuple(row["row_id"] for row in rows)


def _sources(rows: list[Row]) -> tuple[str, ...]:
    return tuple(row["source"] for row in rows)
