"""From layers to a pipeline: the slowest stage sets the pace, the others wait at both ends of an update.

    seconds of an update = micro_batches * (slowest stage) + (pp - 1) / vpp * (mean stage)

Source: interleaved 1F1B schedule, Narayanan et al., arXiv 2104.04473, section 2.2.
"""

from __future__ import annotations

import numpy as np

from rpegc.cost.step_shape import StepShape
from rpegc.target import FloatArray


def head_on_slowest_stage(shape: StepShape, layer_s: FloatArray, head_s: FloatArray) -> FloatArray:
    """Return what logits and loss add to the slowest stage, seconds per micro-batch.

    The last stage carries them in full beside its layers. Where pp does not divide the layers, one layer's slot was
    left to them: only the excess counts.
    """
    divides = shape.architecture.layers % shape.pp == 0
    return np.where(divides, head_s, np.maximum(head_s - layer_s, 0.0))


def bubble(shape: StepShape, layer_s: FloatArray, head_s: FloatArray) -> FloatArray:
    """Return seconds per update in which the slowest stage waits for the first and last micro-batches."""
    mean_stage = (shape.architecture.layers * layer_s + head_s) / shape.pp
    return (shape.pp - 1.0) / shape.vpp * mean_stage
