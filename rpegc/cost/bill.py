"""The bill that training and forward passes share: layers, head, pipeline, gathers, and the framework on top."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rpegc.cost import exchange, layer, pipeline
from rpegc.cost.constants import PRETRAINING, RL_LOGS
from rpegc.cost.device_memory import device_memory
from rpegc.cost.framework import interval, platform_factor
from rpegc.cost.host_memory import host_memory
from rpegc.cost.micro_batch import layer_terms, recomputed
from rpegc.cost.model_state import LocalParameters, signatures, stored_bytes
from rpegc.cost.step_shape import StepShape
from rpegc.cost.table import MemoryTerm, PriceTable, TimeTerm
from rpegc.hardware import Figure
from rpegc.target import Columns, FloatArray


@dataclass(slots=True)
class Bill:
    """Time terms as they are added up, in seconds per RL step; `scaled` is the part that the framework multiplies."""

    shape: StepShape
    times: list[TimeTerm] = field(default_factory=list)

    def add(self, name: str, seconds: FloatArray, hidden: FloatArray, provenance: str, source: str) -> None:
        """Append one term."""
        self.times.append(TimeTerm(name, seconds, hidden, provenance, source))

    def total(self) -> FloatArray:
        """Return the exposed seconds so far."""
        total = np.zeros(self.shape.rows)
        for term in self.times:
            total += term.seconds
        return total


def model_terms(bill: Bill, local: LocalParameters) -> FloatArray:
    """Add the passes through the model; return the seconds of one micro-batch on the slowest stage."""
    shape = bill.shape
    terms = layer_terms(shape)
    again = recomputed(shape, terms)
    layer_s = sum((term.seconds for term in terms), start=np.zeros(shape.rows)) + again
    head = layer.logits_and_loss(shape)
    head_s = head[0] + head[1]
    extra = pipeline.head_on_slowest_stage(shape, layer_s, head_s)
    micro_batch_s = shape.stage_layers * layer_s + extra
    runs = shape.micro_batches * shape.updates
    layers = runs * shape.stage_layers
    nothing = np.zeros(shape.rows)
    for term in terms:
        bill.add(term.name, layers * term.seconds, layers * term.hidden_seconds, term.provenance, term.source)
    bill.add("logits_and_loss", runs * extra, nothing, "fitted", "head GEMM and traffic per logit; " + PRETRAINING)
    if shape.training:
        bill.add("recompute", layers * again, nothing, "fitted", "one more forward pass of what is not kept")
    waiting = shape.updates * pipeline.bubble(shape, layer_s, head_s)
    bill.add("pipeline_bubble", waiting, nothing, "spec", "(pp - 1) / vpp mean stages, arXiv 2104.04473")
    _add(bill, "pipeline_send", exchange.point_to_point(shape), shape.updates)
    _add(bill, "fully_sharded", exchange.fully_sharded(shape, local, micro_batch_s), runs)
    if shape.streams_weights:
        _add(bill, "streamed_weights", exchange.streamed_weights(shape, local, micro_batch_s), runs)
    floor = np.maximum(shape.stage_layers * layer.host_launch_seconds(shape) - micro_batch_s, 0.0)
    bill.add("host_launch", runs * floor, nothing, "assumed", "kernels of a layer times launch time, beyond the work")
    return micro_batch_s


def _add(bill: Bill, name: str, exchanged: exchange.Exchange, times: FloatArray | float) -> None:
    wire, exposed = exchanged
    source = "collective curves of the machine; exposed share " + PRETRAINING
    bill.add(name, times * exposed, times * (wire - exposed), "fitted", source)


def framework_terms(bill: Bill, factor: Figure) -> None:
    """Add what the framework multiplies and adds, and the wait for the slowest data-parallel rank."""
    shape, c = bill.shape, bill.shape.constants
    nothing = np.zeros(shape.rows)
    base = bill.total()
    multiplier = factor.value * platform_factor(c, shape.machine.accelerator.name)
    multiplier *= c.moe_factor.value if shape.architecture.experts else 1.0
    bill.add("framework_factor", (multiplier - 1.0) * base, nothing, factor.provenance, factor.source)
    late = (shape.slowest - 1.0) * multiplier * base
    source = f"slowest of the data-parallel ranks; share left by balancing: {c.imbalance.source}"
    bill.add("length_imbalance", late, nothing, c.imbalance.provenance, source)
    each = c.micro_batch_lora_s if shape.work.lora_rank else c.micro_batch_s
    overhead = each.value * shape.stage_layers * layer.passes(shape) * shape.micro_batches * shape.updates
    bill.add("framework_micro_batches", overhead, nothing, each.provenance, each.source)


def onload_terms(bill: Bill, local: LocalParameters, transfers: float) -> None:
    """Add the copies of offloaded parameters: bytes over the host link, but never less than the measured fixed time."""
    shape, c = bill.shape, bill.shape.constants
    copy = np.maximum(stored_bytes(shape, local) / shape.machine.host_to_device_bandwidth.value, c.onload_s.value)
    moved = shape.offload_parameters & (not shape.streams_weights)
    seconds = np.where(moved, transfers * copy, 0.0)
    bill.add("offload_parameters", seconds, np.zeros(shape.rows), c.onload_s.provenance, c.onload_s.source or RL_LOGS)


def finish(bill: Bill, local: LocalParameters, layouts: Columns) -> PriceTable:
    """Return the price table: the bill, memory, signatures and the interval of the framework's class."""
    shape = bill.shape
    numbers, found = signatures(shape)
    memory: tuple[MemoryTerm, ...] = device_memory(shape, local) + host_memory(shape, local)
    return PriceTable(
        stage=shape.work.stage,
        mesh=shape.mesh,
        layouts=layouts,
        times=tuple(bill.times),
        memory=memory,
        completion=bill.total()[:, None],
        signature=numbers,
        signatures=found,
        interval=interval(shape.constants, shape.machine.accelerator.name, shape.architecture.experts > 0),
    )
