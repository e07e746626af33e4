"""Does it fit: launches that their authors ran, launches that users report to overflow, and planted overflows.

A row of `verdicts_*.csv` holds settings of a launch, a machine, the outcome and where it is stated; `undecided` says
why a row does not state enough. A planted case changes one thing of a launch that ran (four times the batch, a quarter
of the GPUs, no offload). It counts where a bound from below, without any fitted constant, proves that it overflows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from rpegc.errors import InputError, RpegcError
from rpegc.estimate import GivenPlan, estimate, given_by_launch
from rpegc.ir.graph import Op
from rpegc.target import EngineLayout, ShardedLayout
from rpegc.validate.table import Folder, Row, Skipped

FILES = r"verdicts_.*\.csv"
COLUMNS = ("hardware", "model", "outcome", "undecided", "overrides")

FITS, OVERFLOWS = 0.5, 2.0
"""How verdicts stand among other families' figures: share of the capacity, below or above 1."""


@dataclass(slots=True)
class Verdicts:
    """Cases in the order of the tables: what is known, what was said (`FITS` or `OVERFLOWS`), and rows left out."""

    row_ids: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    said: list[float] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, row_id: str, row: Row, known: float, given: GivenPlan) -> None:
        """Judge one case."""
        self.row_ids.append(row_id)
        self.sources.append(row["source"])
        self.parts.append(row["hardware"])
        self.known.append(known)
        self.said.append(FITS if estimate(given).fits else OVERFLOWS)


def verdicts(folder: Folder) -> Verdicts:
    """Return the verdicts on every row of a folder's `verdicts_*.csv`, and on the overflows planted in them."""
    found = Verdicts()
    for name in folder.names(FILES):
        for row in folder.rows(name, COLUMNS):
            _judge(row, found)
    return found


def _judge(row: Row, found: Verdicts) -> None:
    if row["undecided"]:
        found.skipped.append(Skipped(row["row_id"], f"undecidable: {row['undecided']}"))
        return
    try:
        given = _given(row, row["overrides"])
    except RpegcError as problem:
        found.skipped.append(Skipped(row["row_id"], str(problem).splitlines()[0]))
        return
    known = FITS if row["outcome"] == "fits" else OVERFLOWS
    found.add(row["row_id"], row, known, given)
    if known == FITS:
        for change, overrides in planted(row["overrides"]):
            try:
                worse = _given(row, overrides)
            except InputError:  # the degrees of the launch need more GPUs than are left
                continue
            if surely_overflows(worse):
                found.add(f"{row['row_id']}+{change}", row, OVERFLOWS, worse)


def _given(row: Row, overrides: str) -> GivenPlan:
    return given_by_launch(overrides, row["row_id"], row["hardware"], row["model"] or None)


def planted(overrides: str) -> Iterator[tuple[str, str]]:
    """Yield launches that differ in one thing that memory depends on, each with its name."""
    batch = re.compile(r"((?:max_token_len|micro_batch_size)\w*)=(\d+)\b")
    if batch.search(overrides):
        yield "batch-times-4", batch.sub(lambda m: f"{m[1]}={4 * int(m[2])}", overrides)
    for key in ("nnodes", "n_gpus_per_node"):
        count = re.search(rf"\btrainer\.{key}=(\d+)\b", overrides)
        if count and int(count[1]) % 4 == 0:
            yield "quarter-of-gpus", overrides.replace(count[0], f"trainer.{key}={int(count[1]) // 4}")
            break
    if "_offload=True" in overrides:
        yield "no-offload", re.sub(r"_offload=True", "_offload=False", overrides)


def surely_overflows(given: GivenPlan) -> bool:
    """Return whether some stage overflows by what no implementation avoids.

    Training: FP32 weights, gradients and two moments over the ranks that share them (FSDP: 16 bytes a weight; Megatron
    with distributed optimizer: BF16 weights and FP32 gradients of the slice, 12 bytes over all GPUs), layer inputs that
    recompute starts from, and BF16 logits, of a micro-batch of mean length. Generating: the engine's share of the GPU
    beside states that are not offloaded.
    """
    capacity = min(machine.accelerator.hbm_bytes.value for machine in given.machines.values())
    resident = sum(_states(given, name, moved=False) for name in _trained(given))
    rollout = next(name for name, layout in given.layouts.items() if isinstance(layout, EngineLayout))
    engine = given.layouts[rollout]
    assert isinstance(engine, EngineLayout), "a generate stage has an engine"
    shared = any(given.meshes[name].overlaps(given.meshes[rollout]) for name in _trained(given))
    if shared and engine.memory_fraction * capacity + resident > capacity:
        return True
    kept = 0.0 if engine.offload or not shared else engine.memory_fraction * capacity
    for name in _trained(given):
        others = sum(_states(given, other, moved=False) for other in _trained(given) if other != name)
        if _states(given, name, moved=True) + others + kept + _activations(given, name) > capacity:
            return True
    return False


def _trained(given: GivenPlan) -> tuple[str, ...]:
    return tuple(stage.name for stage in given.graph.stages if stage.op is Op.TRAIN)


def _states(given: GivenPlan, name: str, moved: bool) -> float:
    """Return bytes of one GPU's states: all while training (`moved`), or those that stay while others run."""
    layout, work = given.layouts[name], given.works[name]
    assert isinstance(layout, ShardedLayout), "a train stage is sharded"
    assert work.architecture is not None, "a train stage has a model"
    weights = float(work.architecture.parameters_with_head(work.head))
    stay, moments = moved or not layout.offload_parameters, moved or not layout.offload_optimizer
    trained = 0.0 if work.lora_rank else 1.0
    if layout.zero >= 2:
        each = 4.0 * stay + trained * (4.0 * moved + 8.0 * moments)
        return weights * each / layout.shard_size
    part = weights / (layout.tp * layout.pp * layout.ep)
    return part * (2.0 * stay + 4.0 * trained * stay) + trained * 12.0 * moments * weights / given.meshes[name].gpus


def _activations(given: GivenPlan, name: str) -> float:
    layout, work = given.layouts[name], given.works[name]
    assert isinstance(layout, ShardedLayout), "a train stage is sharded"
    assert work.architecture is not None, "a train stage has a model"
    a = work.architecture
    ranks = layout.cp * layout.ulysses
    update = max(work.sequences // (work.minibatches * layout.dp), 1) * work.mean_tokens / ranks
    batch = layout.token_budget or layout.micro_batch * work.mean_tokens / ranks
    tokens = min(batch, update)
    inputs = 0.0 if layout.offload_activations else 2.0 * tokens * a.hidden * (a.layers // layout.pp) / layout.tp
    logits = 2.0 * tokens * a.vocabulary / layout.tp if work.head == "logits" else 0.0
    return inputs + logits
