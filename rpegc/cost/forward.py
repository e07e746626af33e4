"""Price of a `forward` stage: one pass over all sequences of the step without backward (log-probabilities, values)."""

from __future__ import annotations

import numpy as np

from rpegc.cost.bill import Bill, finish, framework_terms, model_terms, onload_terms
from rpegc.cost.framework import FrameworkConstants
from rpegc.cost.model_state import local_parameters
from rpegc.cost.step_shape import step_shape
from rpegc.cost.table import PriceTable
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.target import Columns, MeshClass


def price_forward(
    work: StageWork,
    mesh: MeshClass,
    layouts: Columns,
    machine: Machine,
    constants: FrameworkConstants | None = None,
) -> PriceTable:
    """Return seconds per RL step and bytes of a forward stage under each layout.

    `layouts`: columns of `ShardedLayout`, all on `mesh`. A trained role runs inside its training engine: offloaded
    parameters are loaded once. A frozen role of verl's FSDP engines streams its weights from the host (see
    `StepShape.streams_weights`). `constants` stand in for those of the framework's class.
    """
    shape = step_shape(work, mesh, layouts, machine, constants)
    local = local_parameters(shape)
    bill = Bill(shape)
    model_terms(bill, local)
    framework_terms(bill, shape.constants.forward_factor)
    onload_terms(bill, local, transfers=1.0)
    fixed = shape.constants.update_s
    bill.add(
        "fixed", np.full(shape.rows, fixed.value * shape.updates), np.zeros(shape.rows), fixed.provenance, fixed.source
    )
    return finish(bill, local, layouts)
