"""The price of generating a step's responses: rollout x decode step, prefill, and what the RL framework adds.

    seconds = factor * (integral of decode steps over the rollout + prefill) + engine mode (eager, LoRA, old scheduler)

The decode terms are those of the mean replica until its last tenth of samples; `tail` is everything later: the last
tenth at falling occupancy, and the wait for the slowest replica. So `tail` is what more KV memory cannot buy back.
Waking the engine up and bringing it new weights are transitions, priced elsewhere. A layout whose KV cache cannot hold
one sequence of maximum length has infinite seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.decode import DecodeModel, EngineShape, StepTerms, decode_model, prefill_seconds, whole_layers
from rpegc.cost.engine_memory import engine_memory, memory_terms, preempted_share, sequence_slots
from rpegc.cost.engines import EngineConstants, engine_of
from rpegc.cost.rl_engines import RL_ROWS, RolloutConstants, generation_interval, rollout_constants
from rpegc.cost.rollout import Rollout, length_grid, roll_out
from rpegc.cost.table import PriceTable, TimeTerm
from rpegc.cost.turns import turn_terms
from rpegc.cost.work import Speculation, StageWork
from rpegc.hardware import Machine
from rpegc.lengths import GROUP_CORRELATION
from rpegc.target import BoolArray, Columns, FloatArray, IntArray, MeshClass

COMPLETION_PARTS = 8
_BLOCK_ROWS = 1024  # rows priced together: their arrays stay in the processor's cache
_CAUSES = ("weights_read", "expert_read", "kv_read", "tensor_parallel", "engine_overhead")
_SIGNATURE = ("engine_dp", "ep", "kind", "pp", "precision", "replicas", "tp")
ENGINE_KIND = 1


def price_generation(
    work: StageWork,
    mesh: MeshClass,
    layouts: Columns,
    machine: Machine,
    constants: RolloutConstants | None = None,
) -> PriceTable:
    """Price all engine layouts of a `generate` stage on one mesh class.

    `constants` stand in for those of the framework on this GPU type (validation refits them).

    Terms: weights_read, expert_read, kv_read, tensor_parallel, engine_overhead, prefill, engine_mode, framework, tail.
    Source of form and constants: `rpegc.cost.engines`.
    """
    architecture = work.architecture
    assert architecture is not None, f"{work.stage}: a generate stage has a model"
    engine = engine_of(work.engine_flags)
    shape = _shape(mesh, layouts, work.engine_flags)
    memory = engine_memory(architecture, machine, shape, layouts)
    slots, runs = sequence_slots(memory, architecture, shape, layouts, work.prompt_tokens, work.response_tokens)
    constants = constants or rollout_constants(work.framework, work.engine_class, machine.accelerator.name)
    again = preempted_share(memory, architecture, shape, layouts, work.prompt_tokens, work.response_tokens, slots)
    bill = _bill(work, architecture, machine, engine, constants, shape, layouts, slots, again)
    times = _time_terms(bill, runs, engine, constants, machine)
    turns = turn_terms(work, machine, engine, shape, layouts, mesh.nodes, bill.completion[:, -1])
    waited = sum((term.seconds for term in turns), start=np.zeros(len(runs)))
    signature, signatures = _signatures(layouts)
    return PriceTable(
        stage=work.stage,
        mesh=mesh,
        layouts=layouts,
        times=times + turns,
        memory=memory_terms(memory, machine, shape, layouts, work.engine_flags),
        completion=np.where(runs[:, None], bill.completion + waited[:, None], np.inf),
        signature=signature,
        signatures=signatures,
        interval=generation_interval(work.framework, work.engine_class, machine.accelerator.name, work.engine_flags),
    )


@dataclass(frozen=True, slots=True)
class _Bill:
    """Seconds per row and cause, and the completion curve of shape (rows, parts)."""

    seconds: dict[str, FloatArray]
    completion: FloatArray


@dataclass(frozen=True, slots=True)
class _Additions:
    """What RL adds: a factor on the engine's own seconds, and seconds per step (rows, 1) and per token."""

    factor: float
    step_s: FloatArray
    sequence_s: float


def _shape(mesh: MeshClass, layouts: Columns, flags: frozenset[str]) -> EngineShape:
    fp8 = np.asarray(layouts["precision"]).astype(np.float64)
    return EngineShape(
        tp=np.asarray(layouts["tp"], dtype=np.int64),
        pp=np.asarray(layouts["pp"], dtype=np.int64),
        engine_dp=np.asarray(layouts["engine_dp"], dtype=np.int64),
        fp8=fp8,
        weight_bytes=2.0 - fp8,
        kv_bytes=np.full(len(fp8), 1.0 if "kv_fp8" in flags else 2.0),
        gpus_per_node=mesh.gpus_per_node,
    )


def _bill(
    work: StageWork,
    architecture: Architecture,
    machine: Machine,
    engine: EngineConstants,
    constants: RolloutConstants,
    shape: EngineShape,
    layouts: Columns,
    slots: FloatArray,
    again: FloatArray,
) -> _Bill:
    engines = np.asarray(layouts["replicas"] * layouts["engine_dp"], dtype=np.float64)
    sequences = np.ceil(work.sequences / engines)
    additions = _additions(work, architecture, machine, constants, shape)
    model = decode_model(architecture, machine, engine, shape)
    prefill = _prefill(work, architecture, machine, engine, shape, layouts, engines)
    waits = np.where(sequences > slots, sequences * again, 0.0)
    prefill = prefill + waits * _recomputed(work, architecture, machine, engine, shape)
    grid = length_grid(work.generated_tokens, work.sequences)
    columns = (shape.tp, shape.pp, shape.engine_dp, shape.fp8, sequences, slots, engines, prefill)
    rows, same = _distinct(columns)
    blocks = []
    for start in range(0, len(rows), _BLOCK_ROWS):
        part = rows[start : start + _BLOCK_ROWS]
        rollout = roll_out(
            work.generated_tokens,
            grid,
            work.prompt_tokens.mean + 0.5 * work.observed_tokens,
            sequences[part],
            slots[part],
            engines[part],
            shape.engine_dp[part].astype(np.float64),
            work.samples_per_prompt,
            GROUP_CORRELATION,
        )
        added = _Additions(additions.factor, additions.step_s[part], additions.sequence_s)
        blocks.append(_integrate(rollout, model.rows(part), prefill[part], added, work.speculation))
    names = blocks[0].seconds
    return _Bill(
        {name: np.concatenate([block.seconds[name] for block in blocks])[same] for name in names},
        np.concatenate([block.completion for block in blocks])[same],
    )


def _distinct(columns: tuple[IntArray | FloatArray, ...]) -> tuple[IntArray, IntArray]:
    """Return one row of each combination of values, and which of these every row is: equal rows are priced once."""
    table = np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)
    packed = np.ascontiguousarray(table).view(np.dtype((np.void, table.dtype.itemsize * table.shape[1])))
    _, first, same = np.unique(packed.ravel(), return_index=True, return_inverse=True)
    return first.astype(np.int64), same.reshape(-1).astype(np.int64)


def _integrate(
    rollout: Rollout, model: DecodeModel, prefill: FloatArray, added: _Additions, speculation: Speculation | None
) -> _Bill:
    """Sum the decode steps of a rollout by cause."""
    step = model.step(rollout.active, rollout.context)
    if speculation is not None:
        rollout, step = _speculate(rollout, model, step, speculation)
    extra = added.step_s + added.sequence_s * rollout.active
    every = step.total
    whole = added.factor * every + extra
    body = rollout.steps * rollout.busy_mean * (1.0 - rollout.tail)
    slowest = rollout.steps * np.maximum(rollout.busy_slowest, rollout.busy_mean)
    seconds = {cause: np.einsum("rc,rc->r", body, _cause(step, cause)) for cause in _CAUSES}
    seconds["prefill"] = prefill
    seconds["engine_mode"] = np.einsum("rc,rc->r", body, extra)
    own = np.einsum("rc,rc->r", body, every) + prefill
    seconds["framework"] = (added.factor - 1.0) * own
    seconds["tail"] = np.einsum("rc,rc->r", slowest - body, whole)
    total = np.zeros(len(prefill))
    for amount in seconds.values():
        total = total + amount
    completion = _completion(rollout, slowest * whole, added.factor * prefill, total)
    return _Bill(seconds, completion)


def _speculate(
    rollout: Rollout, model: DecodeModel, plain: StepTerms, speculation: Speculation
) -> tuple[Rollout, StepTerms]:
    """Return fewer and longer steps: each verifies the drafts in one pass, and pays for making them.

    Drafts are made one after the other: each is a share of a plain step, and one more turn of the sampler on the host.
    """
    drafts = speculation.draft_tokens
    verify = model.step(rollout.active, rollout.context, 1.0 + drafts)
    share = drafts * speculation.draft_share
    terms = {cause: _cause(verify, cause) + share * _cause(plain, cause) for cause in _CAUSES}
    terms["engine_overhead"] = terms["engine_overhead"] + drafts * model.host_s
    return replace(rollout, steps=rollout.steps / speculation.tokens_per_step), StepTerms(**terms)


def _cause(step: StepTerms, cause: str) -> FloatArray:
    array: FloatArray = getattr(step, cause)
    return array


def _completion(rollout: Rollout, column_s: FloatArray, prefill: FloatArray, total: FloatArray) -> FloatArray:
    """Return the seconds until each eighth of the samples is done.

    Completions are even while there is a queue. The first batch's prompts are read before any sample can finish, the
    others' while the queue lasts. Within an interval of the drain a sample counts as done at its end.
    """
    waiting = 1.0 - rollout.unfinished[:, 0]
    column_s = column_s.copy()
    column_s[:, 0] += prefill * waiting
    ends = np.cumsum(column_s, axis=1) + (prefill * (1.0 - waiting))[:, None]
    done = 1.0 - rollout.unfinished
    curve = np.empty((len(total), COMPLETION_PARTS))
    for part in range(1, COMPLETION_PARTS):
        wanted = part / COMPLETION_PARTS
        column = np.argmax(done >= wanted - 1e-9, axis=1)
        at_end = np.take_along_axis(ends, column[:, None], axis=1)[:, 0]
        start = ends[:, 0] - column_s[:, 0]
        share = np.minimum(wanted / np.maximum(waiting, wanted), 1.0)
        curve[:, part - 1] = np.where(column == 0, start + share * column_s[:, 0], at_end)
    curve[:, -1] = total
    return np.minimum(curve, total[:, None])


def _prefill(
    work: StageWork,
    architecture: Architecture,
    machine: Machine,
    engine: EngineConstants,
    shape: EngineShape,
    layouts: Columns,
    engines: FloatArray,
) -> FloatArray:
    """Return the seconds per row to read an engine's prompts, by which decoding is delayed.

    With prefix caching a prompt is read once per group (groups stay on one engine); each chunk of `batched_tokens`
    costs a step's overhead.
    """
    prompts = work.sequences if "no_prefix_caching" in work.engine_flags else work.prompts
    per_engine = np.maximum(prompts / engines, 1.0)
    prompt, chunk = work.prompt_tokens, np.asarray(layouts["batched_tokens"], dtype=np.float64)
    tokens = per_engine * prompt.mean
    batch = np.minimum(chunk, tokens)
    one = prefill_seconds(architecture, machine, engine, shape, prompt.mean, prompt.second_moment, batch)
    overhead = engine.step_s.value + engine.layer_s.value * whole_layers(architecture)
    chunks = np.ceil(tokens / chunk)
    return np.asarray(engine.prefill_interference.value * per_engine * one / shape.pp + chunks * overhead)


def _recomputed(
    work: StageWork, architecture: Architecture, machine: Machine, engine: EngineConstants, shape: EngineShape
) -> FloatArray:
    """Return the seconds per row to read a preempted sequence again: its prompt and what it has written."""
    response = work.generated_tokens
    tokens = work.prompt_tokens.mean + response.second_moment / (2.0 * response.mean)
    one = prefill_seconds(architecture, machine, engine, shape, tokens, tokens * tokens, np.full(len(shape.tp), tokens))
    return np.asarray(engine.prefill_interference.value * one / shape.pp)


def _additions(
    work: StageWork, architecture: Architecture, machine: Machine, constants: RolloutConstants, shape: EngineShape
) -> _Additions:
    flags, layers = work.engine_flags, whole_layers(architecture)
    factor = constants.factor.value * (constants.asynchronous.value if "async" in flags else 1.0)
    per_layer = constants.eager_layer_s.value * ("eager" in flags) + constants.lora_layer_s.value * ("lora" in flags)
    leaves = shape.tp > shape.gpus_per_node * machine.nodes_per_domain
    step = (layers * (per_layer + constants.across_layer_s.value * leaves)).astype(np.float64)[:, None]
    return _Additions(factor, step, constants.old_engine_sequence_s.value * ("old_engine" in flags))


def _time_terms(
    bill: _Bill, runs: BoolArray, engine: EngineConstants, constants: RolloutConstants, machine: Machine
) -> tuple[TimeTerm, ...]:
    memory_rate = machine.accelerator.eff_weights.source
    sources = {
        "weights_read": memory_rate,
        "expert_read": engine.expert_share.source,
        "kv_read": machine.accelerator.eff_kv.source,
        "tensor_parallel": engine.allreduce_factor.source,
        "engine_overhead": engine.layer_s.source,
        "prefill": engine.gemm_bf16.source,
        "engine_mode": RL_ROWS,
        "framework": constants.factor.source,
        "tail": f"{RL_ROWS}; order statistics of the response lengths",
    }
    terms = []
    for name, seconds in bill.seconds.items():
        shown = np.where(runs, seconds, np.inf if name == "weights_read" else 0.0)
        terms.append(TimeTerm(name, shown, np.zeros_like(shown), "fitted", sources[name]))
    return tuple(terms)


def _signatures(layouts: Columns) -> tuple[IntArray, tuple[tuple[tuple[str, int], ...], ...]]:
    rows = len(layouts["tp"])
    columns = [np.full(rows, ENGINE_KIND) if name == "kind" else np.asarray(layouts[name]) for name in _SIGNATURE]
    distinct, number = np.unique(np.stack(columns, axis=1).astype(np.int64), axis=0, return_inverse=True)
    signatures = tuple(tuple(zip(_SIGNATURE, values, strict=True)) for values in distinct.tolist())
    return number.reshape(-1).astype(np.int64), signatures
