"""Seconds to move weights from a training layout to a generation layout, for every pair of signatures.

Colocated (one mesh): the engine wakes up and every parameter is gathered from its shards and loaded. Across meshes:
parameters are gathered, sent in buckets through one NIC, and loaded. In both the method decides more than the bytes:
each framework has a time per tensor, a bandwidth and a fixed time. LoRA moves whole weights too (verl merges).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.collectives import collective_seconds
from rpegc.cost.table import PairTable
from rpegc.cost.work import StageWork
from rpegc.errors import InputError, guess
from rpegc.hardware import Figure, Machine
from rpegc.target import WORDS, BoolArray, FloatArray, MeshClass
from rpegc.units import GB, MIB, MILLISECOND

Signature = tuple[tuple[str, int], ...]
"""Sorted (field, value) pairs. `kind` is 0 for training layouts (`shard`: ranks of one FSDP copy, `offload`: whether
parameters rest in host memory) and 1 for generation layouts (`tp`, `pp`, `replicas`, `precision`)."""

TRAINING, GENERATION = 0, 1

VERL_LOGS = "published verl step logs: github.com/eric-haibin-lin/verl-data @bcff590, verl documentation"
VERL_SYNC = "github.com/verl-project/verl docs/advance/fully_async.md @1dda039, checkpoint-engine ablation on H20"
NEMO_REFIT = "totals of the NVIDIA NeMo-RL v0.4 to v0.6 performance summary (an attribution, not a timer)"

RESHARD = "NCCL reshard refit of NeMo-RL, docs/design-docs/nccl-reshard-refit.md @7ea279ab, six models of 4B to 671B"

BF16_BYTES = Figure(2.0, "spec", "weights travel in BF16")
MASTER_BYTES = Figure(4.0, "spec", "FSDP keeps FP32 parameters; what is offloaded is on-loaded at this size")
EXPERT_TENSORS = Figure(3.0, "spec", "gate, up and down projection of one expert")
LAYER_TENSORS = Figure(12.0, "assumed", "attention, norm, router and dense MLP tensors of one layer")
BUCKET_BYTES = Figure(2048 * MIB, "spec", "verl default update_weights_bucket_megabytes")
FP8_LOAD_BANDWIDTH = Figure(
    12 * GB, "fitted", "NeMo-RL refit of Qwen3-30B-A3B at TP 2: 2.9 to 4.0 s with FP8 rollout, 0.7 to 1.0 s in BF16"
)
"""Bytes of BF16 weights per second that one GPU of an FP8 engine quantises while it loads its share."""

SYNC_INTERVAL = (1 / 1.6, 1.6)
"""Multipliers of an 80 % interval: rough; the same engine was measured at 4.4 and 7.4 s for one model."""


@dataclass(frozen=True, slots=True)
class SyncConstants:
    """How fast one framework moves weights: fixed seconds, seconds per tensor and B/s, colocated and across meshes.

    `in_parallel`: across meshes every rank of the engine receives its own share at that rate, else all passes once.
    """

    same_fixed_s: Figure
    same_tensor_s: Figure
    same_bandwidth: Figure
    across_fixed_s: Figure
    across_tensor_s: Figure
    across_bandwidth: Figure
    in_parallel: bool = False


SYNC_CONSTANTS = {
    "verl": SyncConstants(
        same_fixed_s=Figure(1.25, "fitted", f"fitted to {VERL_LOGS}; wakes the engine up"),
        same_tensor_s=Figure(0.0, "fitted", f"fitted to {VERL_LOGS}; dense models, contained in the bandwidth"),
        same_bandwidth=Figure(15.5 * GB, "fitted", f"fitted to {VERL_LOGS}; 0.5B to 72B on 1 to 16 GPUs"),
        across_fixed_s=Figure(0.0, "fitted", f"fitted to {VERL_SYNC}"),
        across_tensor_s=Figure(0.09 * MILLISECOND, "fitted", f"fitted to two rows of {VERL_SYNC}"),
        across_bandwidth=Figure(23 * GB, "fitted", f"fitted to two rows of {VERL_SYNC}"),
    ),
    "deepspeed": SyncConstants(
        same_fixed_s=Figure(1.6, "assumed", "as verl: the same engine wakes up"),
        same_tensor_s=Figure(0.58 * MILLISECOND, "assumed", "each parameter is gathered and loaded alone, as across"),
        same_bandwidth=Figure(15 * GB, "assumed", "as verl"),
        across_fixed_s=Figure(0.0, "assumed", "as the per-tensor broadcast of verl"),
        across_tensor_s=Figure(0.58 * MILLISECOND, "assumed", f"per-tensor broadcast, two rows of {VERL_SYNC}"),
        across_bandwidth=Figure(12.6 * GB, "assumed", f"per-tensor broadcast, two rows of {VERL_SYNC}"),
    ),
    "reshard": SyncConstants(
        same_fixed_s=Figure(1.0, "assumed", "as native"),
        same_tensor_s=Figure(0.0, "fitted", f"{RESHARD}; contained in the bandwidth"),
        same_bandwidth=Figure(22 * GB, "assumed", "as native"),
        across_fixed_s=Figure(0.15, "fitted", RESHARD),
        across_tensor_s=Figure(0.0, "fitted", f"{RESHARD}; contained in the bandwidth"),
        across_bandwidth=Figure(22 * GB, "fitted", RESHARD),
        in_parallel=True,
    ),
    "nemo-rl": SyncConstants(
        same_fixed_s=Figure(15.99, "fitted", f"{NEMO_REFIT}; contains what else a colocated step takes"),
        same_tensor_s=Figure(0.0, "fitted", f"{NEMO_REFIT}; contained in the bandwidth"),
        same_bandwidth=Figure(21.3 * GB, "fitted", NEMO_REFIT),
        across_fixed_s=Figure(3.94, "fitted", f"{NEMO_REFIT}; contains what else a step takes"),
        across_tensor_s=Figure(0.0, "fitted", f"{NEMO_REFIT}; contained in the bandwidth"),
        across_bandwidth=Figure(45.5 * GB, "fitted", NEMO_REFIT),
    ),
    "native": SyncConstants(
        same_fixed_s=Figure(1.0, "assumed", f"bulk reshard, {NEMO_REFIT}"),
        same_tensor_s=Figure(0.09 * MILLISECOND, "assumed", "as the bucketed sync of verl"),
        same_bandwidth=Figure(22 * GB, "assumed", f"bulk reshard, {NEMO_REFIT}"),
        across_fixed_s=Figure(1.0, "assumed", f"bulk reshard, {NEMO_REFIT}"),
        across_tensor_s=Figure(0.09 * MILLISECOND, "assumed", "as the bucketed sync of verl"),
        across_bandwidth=Figure(41 * GB, "assumed", f"bulk reshard, {NEMO_REFIT}"),
    ),
}
"""One set per framework."""


@dataclass(frozen=True, slots=True)
class Link:
    """The network between two pools: B/s for each GPU and direction, seconds of a hop, and how that is known."""

    bandwidth: float
    hop_s: float
    provenance: str
    source: str


def link_between(one: Machine, other: Machine, stated: float | None = None) -> Link:
    """Return the network between two machines: `stated` B/s if the user knows it, else the slower of the two NICs."""
    networks = (one.network, other.network)
    hop_s = max(network.latency_per_hop_s.value for network in networks)
    if stated is not None:
        return Link(stated, hop_s, "spec", "cluster.pools.link_bandwidth, as the pipeline states it")
    slower = min(network.nic_bandwidth.value * network.nic_efficiency.value for network in networks)
    return Link(slower, hop_s, "assumed", f"the slower of the networks of {one.name} and {other.name}")


def sync_seconds(
    work: StageWork,
    machine: Machine,
    framework: str,
    source_mesh: MeshClass,
    source_signatures: tuple[Signature, ...],
    target_mesh: MeshClass,
    target_signatures: tuple[Signature, ...],
    link: Link | None = None,
    constants: SyncConstants | None = None,
) -> PairTable:
    """Seconds of one weight sync for each pair of signatures: `across` two meshes, or on the `same` one.

        same   = fixed + tensors * tau + max(2P / B, gather) + onload + quantise
        across = fixed + tensors * tau + max(2P / min(B, NIC), gather) + hops + onload + quantise

    P are the parameters of the architecture of `work`, `tensors` = 3 experts * MoE layers + 12 layers, `gather` the
    all-gather of 2P bytes over the FSDP group, `onload` the copy of offloaded shards from host memory, `hops` one
    passage through the target's nodes per bucket, `quantise` the conversion to FP8. Equal signatures on one mesh
    share one copy: zero. The engine's wake-up is part of `same`; generation must not add it again.
    With a `link` the two meshes lie in pools of unlike machines, `machine` being that of the source: NIC and hops are
    the link's. `constants` stand in for those of the framework. Interval: `SYNC_INTERVAL`. Raises `InputError` for an
    unknown framework.
    Source: fitted to published verl logs and its checkpoint-engine ablation; other frameworks assumed from them.
    """
    source = sending_side(work, machine, source_mesh, source_signatures)
    target = receiving_side(work, target_mesh, target_signatures)
    return sync_between(work, machine, framework, source, target, link, constants)


@dataclass(frozen=True, slots=True)
class SendingSide:
    """What a sync costs because of where it comes from, one value a signature."""

    mesh: MeshClass
    signatures: tuple[Signature, ...]
    gather: FloatArray
    onload: FloatArray


@dataclass(frozen=True, slots=True)
class ReceivingSide:
    """What a sync costs because of where it goes, one value a signature."""

    mesh: MeshClass
    signatures: tuple[Signature, ...]
    load: FloatArray
    wakes: BoolArray


def sending_side(work: StageWork, machine: Machine, mesh: MeshClass, signatures: tuple[Signature, ...]) -> SendingSide:
    """Return the source's share of `sync_seconds`. Raises ValueError for a stage without a model."""
    if work.architecture is None:
        raise ValueError(f"{work.stage} has no model, hence no weights to move")
    moved_bytes = BF16_BYTES.value * work.architecture.parameters
    gather = _gather_seconds(machine, mesh, signatures, moved_bytes)
    return SendingSide(mesh, signatures, gather, _onload_seconds(machine, signatures, work.architecture.parameters))


def receiving_side(work: StageWork, mesh: MeshClass, signatures: tuple[Signature, ...]) -> ReceivingSide:
    """Return the target's share of `sync_seconds`; `work` is that of the source. Raises ValueError as above."""
    if work.architecture is None:
        raise ValueError(f"{work.stage} has no model, hence no weights to move")
    load = _quantise_seconds(signatures, BF16_BYTES.value * work.architecture.parameters)
    return ReceivingSide(mesh, signatures, load, _column(signatures, "kind", GENERATION) == GENERATION)


def sync_between(
    work: StageWork,
    machine: Machine,
    framework: str,
    source: SendingSide,
    target: ReceivingSide,
    link: Link | None = None,
    constants: SyncConstants | None = None,
) -> PairTable:
    """Return `sync_seconds` from its two sides, which many pairs share."""
    if constants is None and framework not in SYNC_CONSTANTS:
        raise InputError(f"no weight sync is known for framework `{framework}`", None, guess(framework, SYNC_CONSTANTS))
    if work.architecture is None:
        raise ValueError(f"{work.stage} has no model, hence no weights to move")
    constants = constants or SYNC_CONSTANTS[framework]
    moved_bytes = BF16_BYTES.value * work.architecture.parameters
    tensors = tensor_count(work.architecture)
    gather, onload, load = source.gather[:, None], source.onload[:, None], target.load[None, :]

    wakes = target.wakes[None, :]
    same = np.where(wakes, constants.same_fixed_s.value, 0.0) + tensors * constants.same_tensor_s.value
    same = same + np.maximum(moved_bytes / constants.same_bandwidth.value, gather) + onload + load
    if source.mesh == target.mesh:  # stages on one mesh have one mesh class
        same = np.where(_equal(source.signatures, target.signatures), 0.0, same)

    nic = link.bandwidth if link else machine.network.nic_bandwidth.value * machine.network.nic_efficiency.value
    hop_s = link.hop_s if link else machine.network.latency_per_hop_s.value
    wire = moved_bytes / min(constants.across_bandwidth.value, nic) / _receivers(constants, target.signatures)
    buckets = np.ceil(moved_bytes / BUCKET_BYTES.value)
    hops = buckets * target.mesh.nodes * hop_s
    across = constants.across_fixed_s.value + tensors * constants.across_tensor_s.value + hops
    across = across + (wire if constants.in_parallel else np.maximum(wire, gather)) + onload + load
    figure = constants.across_bandwidth
    origin = f"{constants.same_bandwidth.source}; {figure.source}"
    if link:
        return PairTable(across, same, link.provenance, f"{link.source}; {figure.source}")
    return PairTable(across, same, figure.provenance, origin)


def tensor_count(architecture: Architecture) -> float:
    """Number of tensors that a sync handles one by one: three per expert and about twelve per layer."""
    experts = EXPERT_TENSORS.value * architecture.experts * architecture.moe_layers
    return experts + LAYER_TENSORS.value * architecture.layers


def _gather_seconds(
    machine: Machine, mesh: MeshClass, signatures: tuple[Signature, ...], moved_bytes: float
) -> FloatArray:
    """Seconds to gather all weights over the group that shards them; zero where each rank holds a full copy."""
    members = _column(signatures, "shard", 1) * _column(signatures, "pp", 1)
    members = members * np.maximum(_column(signatures, "tp", 1), _column(signatures, "ep", 1))
    members = np.minimum(members, mesh.gpus)
    return collective_seconds(machine, "all_gather", moved_bytes, members, np.minimum(members, mesh.gpus_per_node))


def _onload_seconds(machine: Machine, signatures: tuple[Signature, ...], parameters: float) -> FloatArray:
    """Seconds to copy a rank's offloaded weights from host memory.

    They are an FP32 shard, or the BF16 slice of an engine that shards the optimizer alone (`zero` below 2).
    """
    ranks = np.maximum(_column(signatures, "shard", 1) * _column(signatures, "tp", 1) * _column(signatures, "pp", 1), 1)
    offloaded = (_column(signatures, "kind", TRAINING) == TRAINING) & (_column(signatures, "offload", 0) > 0)
    each = np.where(_column(signatures, "zero", 3) < 2, BF16_BYTES.value, MASTER_BYTES.value)
    return np.where(offloaded, each * parameters / ranks / machine.host_to_device_bandwidth.value, 0.0)


def _receivers(constants: SyncConstants, targets: tuple[Signature, ...]) -> FloatArray:
    share = _column(targets, "tp", 1) * _column(targets, "pp", 1) if constants.in_parallel else np.ones(len(targets))
    return share[None, :]


def _quantise_seconds(signatures: tuple[Signature, ...], moved_bytes: float) -> FloatArray:
    """Seconds that an FP8 engine needs to convert what it receives."""
    fp8 = _column(signatures, "precision", 0) == WORDS["precision"].index("fp8")
    share = _column(signatures, "tp", 1) * _column(signatures, "pp", 1)
    return np.where(fp8, moved_bytes / share / FP8_LOAD_BANDWIDTH.value, 0.0)


def _equal(sources: tuple[Signature, ...], targets: tuple[Signature, ...]) -> BoolArray:
    number = {signature: index for index, signature in enumerate(sources)}
    left = np.array([number[signature] for signature in sources])
    right = np.array([number.get(signature, -1) for signature in targets])
    equal: BoolArray = left[:, None] == right[None, :]
    return equal


def _column(signatures: tuple[Signature, ...], name: str, default: int) -> FloatArray:
    return np.array([dict(signature).get(name, default) for signature in signatures], dtype=np.float64)
