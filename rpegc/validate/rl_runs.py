"""One published RL run as stages that the planner prices: generation, passes over the samples, weight sync.

Every stage is priced by the planner's own functions. All that is fitted enters those prices linearly or as a factor, so
each stage is priced a few times with constants of 0 and 1, and kept as what these multiply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.forward import price_forward
from rpegc.cost.framework import FrameworkConstants
from rpegc.cost.framework_classes import framework_constants
from rpegc.cost.generation import price_generation
from rpegc.cost.rl_engines import RolloutConstants
from rpegc.cost.table import PriceTable
from rpegc.cost.training import price_training
from rpegc.cost.transitions import SyncConstants, sync_seconds, tensor_count
from rpegc.cost.work import StageWork
from rpegc.hardware import Figure, Machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import EngineLayout, MeshClass, ShardedLayout, columns_of
from rpegc.validate.table import SkipRow


@dataclass(frozen=True, slots=True)
class Run:
    """What a row states, or a rule of this folder assumes, about one run.

    `engine_flags` are those of generation, `train_flags` those of the passes. `adapters`: LoRA rank or 0.
    """

    row_id: str
    source: str
    origin: str
    model: str
    gpu: str
    framework: str
    engine_class: str
    architecture: Architecture
    machine: Machine
    prompts: int
    samples: int
    minibatches: int
    prompt: Lengths
    response: Lengths
    train_mesh: MeshClass
    train_layout: ShardedLayout
    forward_layout: ShardedLayout
    generation_mesh: MeshClass
    generation_layout: EngineLayout
    engine_flags: frozenset[str]
    train_flags: frozenset[str] = frozenset()
    adapters: int = 0
    asynchronous: bool = False
    colocated: bool = True
    release: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """Framework class: framework and engine."""
        return f"{self.framework} {self.engine_class}"


@dataclass(frozen=True, slots=True)
class Generation:
    """Seconds of the engine itself, and what one second per layer or token of each addition makes."""

    own: float
    eager: float
    lora: float
    across: float
    old: float


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass or an update: `scaled` seconds that the framework multiplies, and others that it does not.

    `per_micro_batch` is layers times micro-batches times passes, `copies` the seconds of moving offloaded parameters by
    their bytes in `transfers` moves.
    """

    scaled: float
    plain: float
    per_micro_batch: float
    copies: float
    transfers: float


@dataclass(frozen=True, slots=True)
class Sync:
    """Bytes and tensors that a weight sync moves, and seconds that its bandwidth does not touch."""

    bytes: float
    tensors: float
    gather: float
    rest: float


def _figure(value: float) -> Figure:
    return Figure(value, "assumed", "")


def work_of(run: Run, op: Op, head: str = "logits", trained: bool = True) -> StageWork:
    """Return the work of one stage of a run."""
    return StageWork(
        stage=run.row_id,
        op=op,
        role="actor",
        architecture=run.architecture,
        framework=run.framework,
        engine_class=run.engine_class,
        prompts=run.prompts,
        samples_per_prompt=run.samples,
        minibatches=run.minibatches if op is Op.TRAIN else 1,
        epochs=1,
        prompt_tokens=run.prompt,
        response_tokens=run.response,
        head=head,
        trained=trained,
        lora_rank=run.adapters if trained else 0,
        engine_flags=run.engine_flags if op is Op.GENERATE else run.train_flags,
    )


def generation_of(run: Run) -> Generation:
    """Price the generation of a run; raises SkipRow if the stated engine cannot hold one sequence."""
    work = work_of(run, Op.GENERATE)
    columns = columns_of([run.generation_layout], run.generation_mesh)

    def seconds(**values: float) -> float:
        additions = {name: _figure(values.get(name, 0.0)) for name in RolloutConstants.__slots__}
        constants = RolloutConstants(**{**additions, "factor": _figure(1.0), "asynchronous": _figure(1.0)})
        return float(price_generation(work, run.generation_mesh, columns, run.machine, constants).seconds[0])

    own = seconds()
    if not np.isfinite(own):
        raise SkipRow("the stated engine layout cannot hold one sequence of maximum length")
    return Generation(
        own,
        eager=seconds(eager_layer_s=1.0) - own,
        lora=seconds(lora_layer_s=1.0) - own,
        across=seconds(across_layer_s=1.0) - own,
        old=seconds(old_engine_sequence_s=1.0) - own,
    )


def pass_of(run: Run, op: Op, head: str = "logits", trained: bool = True) -> Pass:
    """Price a forward pass or an update of a run."""
    work = work_of(run, op, head, trained)
    layout = run.train_layout if op is Op.TRAIN else run.forward_layout
    columns = columns_of([layout], run.train_mesh)
    price = price_training if op is Op.TRAIN else price_forward
    base = framework_constants(run.framework, run.engine_class)

    def table(factor: float, micro_batch_s: float, onload_s: float) -> PriceTable:
        constants: FrameworkConstants = replace(
            base,
            train_factor=_figure(factor),
            forward_factor=_figure(factor),
            moe_factor=_figure(1.0),
            platforms={},
            micro_batch_s=_figure(micro_batch_s),
            micro_batch_lora_s=_figure(micro_batch_s),
            onload_s=_figure(onload_s),
        )
        return price(work, run.train_mesh, columns, run.machine, constants)

    once = table(1.0, 0.0, 0.0)
    whole = float(once.seconds[0])
    scaled = float(table(2.0, 0.0, 0.0).seconds[0]) - whole
    copies = next(float(term.seconds[0]) for term in once.times if term.name == "offload_parameters")
    moved = next(
        float(term.seconds[0]) for term in table(1.0, 0.0, 1e6).times if term.name == "offload_parameters"
    )
    return Pass(
        scaled=scaled,
        plain=whole - scaled - copies,
        per_micro_batch=float(table(1.0, 1.0, 0.0).seconds[0]) - whole,
        copies=copies,
        transfers=moved / 1e6,
    )


def sync_of(run: Run) -> Sync:
    """Price the weight sync of a run from its training to its generation layout."""
    work = work_of(run, Op.TRAIN)
    source = price_training(work, run.train_mesh, columns_of([run.train_layout], run.train_mesh), run.machine)
    target = price_generation(
        work_of(run, Op.GENERATE),
        run.generation_mesh,
        columns_of([run.generation_layout], run.generation_mesh),
        run.machine,
    )
    none, fast = _figure(0.0), _figure(1e30)

    def seconds(signatures: tuple[tuple[tuple[str, int], ...], ...], bandwidth: Figure) -> float:
        free = SyncConstants(none, none, bandwidth, none, none, bandwidth)
        pairs = sync_seconds(
            work, run.machine, run.framework, run.train_mesh, signatures, run.generation_mesh, target.signatures, free
        )
        return float(pairs.same[0, 0])

    moved = 2.0 * run.architecture.parameters
    idle = tuple(tuple((name, 0 if name == "offload" else value) for name, value in one) for one in source.signatures)
    gather = seconds(idle, fast)
    return Sync(moved, tensor_count(run.architecture), gather, seconds(source.signatures, fast) - gather)
