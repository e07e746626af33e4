"""Price of a `train` stage: forward and backward passes over all sequences of the step, and its optimizer updates."""

from __future__ import annotations

import numpy as np

from rpegc.cost import exchange
from rpegc.cost.bill import Bill, finish, framework_terms, model_terms, onload_terms
from rpegc.cost.constants import ADAM_BYTES, HOST_UPDATE_BANDWIDTH, OPTIMIZER_BYTES, PRETRAINING
from rpegc.cost.framework import FrameworkConstants
from rpegc.cost.model_state import LocalParameters, local_parameters, updated_parameters
from rpegc.cost.roofline import elementwise_seconds
from rpegc.cost.step_shape import step_shape
from rpegc.cost.table import PriceTable
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.target import Columns, FloatArray, MeshClass


def price_training(
    work: StageWork,
    mesh: MeshClass,
    layouts: Columns,
    machine: Machine,
    constants: FrameworkConstants | None = None,
) -> PriceTable:
    """Return seconds per RL step and bytes of a train stage under each layout.

    `layouts`: columns of `ShardedLayout`, all on `mesh`. The step runs `work.epochs` times over its sequences in
    `work.minibatches` updates each. `constants` stand in for those of the framework's class (validation refits them).
    Sources: each term names its own.
    """
    bill, local = _bill(work, mesh, layouts, machine, constants)
    return finish(bill, local, layouts)


def training_seconds(
    work: StageWork, mesh: MeshClass, layouts: Columns, machine: Machine, constants: FrameworkConstants | None = None
) -> FloatArray:
    """Return the exposed seconds of `price_training` alone, without memory and signatures."""
    return _bill(work, mesh, layouts, machine, constants)[0].total()


def _bill(
    work: StageWork, mesh: MeshClass, layouts: Columns, machine: Machine, constants: FrameworkConstants | None
) -> tuple[Bill, LocalParameters]:
    shape = step_shape(work, mesh, layouts, machine, constants)
    local = local_parameters(shape)
    bill = Bill(shape)
    micro_batch_s = model_terms(bill, local)
    wire, exposed = exchange.gradients(shape, local, micro_batch_s)
    source = "collective curves of the machine; exposed share " + PRETRAINING
    bill.add("data_parallel", shape.updates * exposed, shape.updates * (wire - exposed), "fitted", source)
    bill.add(
        "optimizer",
        shape.updates * elementwise_seconds(machine, OPTIMIZER_BYTES.value * updated_parameters(shape, local)),
        np.zeros(shape.rows),
        OPTIMIZER_BYTES.provenance,
        OPTIMIZER_BYTES.source,
    )
    framework_terms(bill, shape.constants.train_factor)
    onload_terms(bill, local, transfers=2.0)
    _offload_optimizer(bill, local)
    _offload_activations(bill, micro_batch_s)
    fixed = shape.constants.update_s
    seconds = np.full(shape.rows, fixed.value * shape.updates)
    bill.add("fixed", seconds, np.zeros(shape.rows), fixed.provenance, fixed.source)
    return bill, local


def _offload_optimizer(bill: Bill, local: LocalParameters) -> None:
    """Add the copies of offloaded Adam moments to the GPU and back, once a step.

    Where the optimizer steps on the host, every update sends BF16 gradients there and BF16 weights back instead.
    """
    shape = bill.shape
    if shape.constants.host_update:
        _update_on_host(bill, local)
        return
    state = ADAM_BYTES.value * updated_parameters(shape, local)
    machine = shape.machine
    copies = state / machine.host_to_device_bandwidth.value + state / machine.device_to_host_bandwidth.value
    seconds = np.where(shape.offload_optimizer, copies, 0.0)
    bill.add(
        "offload_optimizer", seconds, np.zeros(shape.rows), "assumed", "8 B per weight each way over the host link"
    )


def _update_on_host(bill: Bill, local: LocalParameters) -> None:
    """Add updates of an offloaded optimizer on the host: memory traffic there, weights and gradients on the link."""
    shape, machine = bill.shape, bill.shape.machine
    weights = updated_parameters(shape, local)
    link = 2.0 / machine.host_to_device_bandwidth.value + 2.0 / machine.device_to_host_bandwidth.value
    each = weights * (link + OPTIMIZER_BYTES.value / HOST_UPDATE_BANDWIDTH.value)
    seconds = np.where(shape.offload_optimizer, shape.updates * each, 0.0)
    figure = HOST_UPDATE_BANDWIDTH
    bill.add("offload_optimizer", seconds, np.zeros(shape.rows), figure.provenance, figure.source)


def _offload_activations(bill: Bill, micro_batch_s: FloatArray) -> None:
    """Add the copies of layer inputs to the host and back (2 B T H a layer); computation covers what it can."""
    shape = bill.shape
    stored = 2.0 * shape.tokens * shape.architecture.hidden * shape.stage_layers
    link = np.minimum(shape.machine.host_to_device_bandwidth.value, shape.machine.device_to_host_bandwidth.value)
    wire = np.where(shape.offload_activations, 2.0 * stored / link, 0.0)
    exposed = np.maximum(wire - micro_batch_s, 0.0)
    runs = shape.micro_batches * shape.updates
    source = "layer inputs over the host link, behind computation"
    bill.add("offload_activations", runs * exposed, runs * (wire - exposed), "assumed", source)
