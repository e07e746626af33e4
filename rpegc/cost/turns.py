"""What several turns add to generation: an environment (tool, sandbox, user) answers between them.

While it answers one sample, the engines decode the others, so that only two things show: a sample that is among the
last waits for its own answers, and workers that are too few hold everybody up. What the environment says is read, not
generated; what was read before stays in the prefix cache (vLLM, SGLang), so that every token is read once.
"""

from __future__ import annotations

import numpy as np

from rpegc.cost.decode import EngineShape, prefill_seconds
from rpegc.cost.engines import EngineConstants
from rpegc.cost.table import TimeTerm
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.target import Columns, FloatArray

STATED = "seconds and turns as the pipeline states them; other samples decode meanwhile"


def turn_terms(
    work: StageWork,
    machine: Machine,
    engine: EngineConstants,
    shape: EngineShape,
    layouts: Columns,
    nodes: int,
    generation_s: FloatArray,
) -> tuple[TimeTerm, ...]:
    """Return the terms `observations` and `environment` in seconds, a row for each layout; none for a single turn.

    `environment` = (turns - 1) * seconds of a call, a sample's own waits, plus what all calls on the workers of `nodes`
    nodes take beyond `generation_s`. `observations` = reading what was added, as prompts are read.
    """
    if work.turns == 1:
        return ()
    architecture = work.architecture
    assert architecture is not None, f"{work.stage}: a generate stage has a model"
    engines = np.asarray(layouts["replicas"] * layouts["engine_dp"], dtype=np.float64)
    batch = np.asarray(layouts["batched_tokens"], dtype=np.float64)
    tokens = work.observed_tokens
    one = prefill_seconds(architecture, machine, engine, shape, tokens, tokens * tokens, batch)
    read = engine.prefill_interference.value * np.ceil(work.sequences / engines) * one / shape.pp
    workers = max(1, min(work.turn_workers_per_node, int(machine.host_cores.value))) * nodes
    waits = (work.turns - 1) * work.turn_cpu_seconds
    held_up = np.maximum(work.sequences * waits / workers - generation_s, 0.0)
    nothing = np.zeros_like(generation_s)
    return (
        TimeTerm("observations", np.asarray(read), nothing, "fitted", engine.gemm_bf16.source),
        TimeTerm("environment", waits + np.where(np.isfinite(held_up), held_up, 0.0), nothing, "spec", STATED),
    )
