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
from rpegc.cost.training import price_training
from rpegc.cost.transitions import GENERATION, TRAINING, Signature, SyncConstants, sync_seconds, tensor_count
from rpegc.cost.work import StageWork
from rpegc.hardware import Figure, Machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import WORDS, EngineLayout, MeshClass, ShardedLayout, columns_of
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
    flags, layout = run.engine_flags, run.generation_layout
    leaves = layout.tp > run.generation_mesh.gpus_per_node * run.machine.nodes_per_domain
    return Generation(
        own,
        eager=seconds(eager_layer_s=1.0) - own if "eager" in flags else 0.0,
        lora=seconds(lora_layer_s=1.0) - own if "lora" in flags else 0.0,
        across=seconds(across_layer_s=1.0) - own if leaves else 0.0,
        old=seconds(old_engine_sequence_s=1.0) - own if "old_engine" in flags else 0.0,
    )


def pass_of(run: Run, op: Op, head: str = "logits", trained: bool = True) -> Pass:
    """Price a forward pass or an update of a run."""
    work = work_of(run, op, head, trained)
    layout = run.train_layout if op is Op.TRAIN else run.forward_layout
    columns = columns_of([layout], run.train_mesh)
    price = price_training if op is Op.TRAIN else price_forward
    base = framework_constants(run.framework, run.engine_class)

    constants: FrameworkConstants = replace(
        base,
        train_factor=_figure(2.0),
        forward_factor=_figure(2.0),
        moe_factor=_figure(1.0),
        platforms={},
        micro_batch_s=_figure(1.0),
        micro_batch_lora_s=_figure(1.0),
        onload_s=_figure(0.0),
    )
    table = price(work, run.train_mesh, columns, run.machine, constants)
    terms = {term.name: float(term.seconds[0]) for term in table.times}
    once, late = terms["framework_factor"], terms["length_imbalance"]
    copies, overhead = terms["offload_parameters"], terms["framework_micro_batches"]
    return Pass(
        scaled=once + late / 2.0,
        plain=float(table.seconds[0]) - 2.0 * once - late - copies - overhead,
        per_micro_batch=overhead,
        copies=copies,
        transfers=0.0 if copies == 0.0 else (2.0 if op is Op.TRAIN else 1.0),
    )


def sync_of(run: Run) -> Sync:
    """Price the weight sync of a run from its training to its generation layout."""
    work = work_of(run, Op.TRAIN)
    train, engine = run.train_layout, run.generation_layout
    source = (
        ("kind", TRAINING),
        ("offload", int(train.offload_parameters)),
        ("pp", train.pp),
        ("shard", train.shard_size if train.zero == 3 else 1),
        ("tp", train.tp),
    )
    precision = WORDS["precision"].index(engine.precision)
    target = (("kind", GENERATION), ("pp", engine.pp), ("precision", precision), ("tp", engine.tp))
    none, fast = _figure(0.0), _figure(1e30)

    free = SyncConstants(none, none, fast, none, none, fast)

    def seconds(signature: Signature) -> float:
        pairs = sync_seconds(
            work, run.machine, run.framework, run.train_mesh, (signature,), run.generation_mesh, (target,), None, free
        )
        return float(pairs.same[0, 0])

    gather = seconds(tuple((name, 0 if name == "offload" else value) for name, value in source))
    moved = 2.0 * run.architecture.parameters
    return Sync(moved, tensor_count(run.architecture), gather, seconds(source) - gather)
