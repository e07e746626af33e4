"""Build what a rank needs for a plan: groups of every mesh and layout, models in their layouts, prompts, routes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rpegc.errors import InputError
from rpegc.ir.graph import Op, Stage
from rpegc.plan import Plan, PlannedStage
from rpegc.runtime.decode import Decoder
from rpegc.runtime.flow import Flow, flows
from rpegc.runtime.groups import Axes, axes_of, mesh_ranks, new_group
from rpegc.runtime.model import load_model, load_tokenizer
from rpegc.runtime.optimizer import Optimizer
from rpegc.runtime.prompts import PromptFile
from rpegc.runtime.reshard import Route
from rpegc.runtime.settings import Settings
from rpegc.runtime.worker import Worker
from rpegc.target import EngineLayout, Layout, ShardedLayout


@dataclass(slots=True)
class Engine:
    """This rank's share of a plan. Dictionaries hold an entry for every stage or mesh that the rank takes part in.

    `workers` has one model for every (role, mesh): passes of a trained role use the model that trains. `cpu_groups`
    join the ranks of a mesh for samples, which stay on the CPU; `routes` belong to the sync stages.
    """

    plan: Plan
    settings: Settings
    device: torch.device
    flows: dict[str, Flow]
    ranks: dict[str, tuple[int, ...]]
    cpu_groups: dict[str, Any]
    axes: dict[str, Axes]
    workers: dict[tuple[str, str], Worker] = field(default_factory=dict)
    decoders: dict[str, Decoder] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)
    prompts: PromptFile | None = None
    tokenizer: Any = None
    ends: frozenset[int] = frozenset()

    def worker(self, stage: PlannedStage) -> Worker:
        """Return the model that a stage runs."""
        return self.workers[stage.model, stage.mesh]

    @property
    def trained(self) -> dict[str, Worker]:
        """This rank's trained models by role."""
        return {role: worker for (role, _), worker in self.workers.items() if worker.optimizer is not None}

    def trainer(self, role: str) -> PlannedStage:
        """Return the stage that trains a role."""
        return next(stage for stage in self.plan.stages if stage.op == Op.TRAIN and stage.model == role)

    def on(self, stage: str) -> bool:
        """Whether this rank belongs to a stage's mesh."""
        mesh = self.plan.stage(stage).mesh
        return bool(mesh) and dist.get_rank() in self.ranks[mesh]


def connect(plan: Plan) -> torch.device:
    """Join the process group that the launcher describes; alone if there is no launcher. Returns this rank's device."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if dist.is_initialized():
        pass  # by whoever runs several plans in one process
    elif "RANK" in os.environ:
        dist.init_process_group(backend, store=_store(), rank=int(os.environ["RANK"]), world_size=_world_size())
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if dist.get_world_size() != plan.devices.gpus:
        message = f"the plan is for {plan.devices.gpus} processes, one a GPU, and {dist.get_world_size()} were started"
        raise InputError(message, hint="launch/run.sh starts as many as the plan needs")
    return device


def _world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def _store() -> Any:
    """Return a store that rank 0 holds, on a port of its own for every start.

    The launcher's own store keeps what the processes before a restart wrote: with fixed node ranks (torch 2.13) the new
    ones look for the old ones' addresses there, in vain.
    """
    port = int(os.environ["MASTER_PORT"]) + 1 + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return dist.TCPStore(os.environ["MASTER_ADDR"], port, _world_size(), is_master=os.environ["RANK"] == "0")


def build(plan: Plan, settings: Settings, device: torch.device) -> Engine:
    """Build groups, models and routes; every rank calls it, and goes through the same groups in the same order."""
    ranks = {mesh.name: mesh_ranks(plan, mesh) for mesh in plan.meshes}
    cpu_groups = {mesh.name: new_group(ranks[mesh.name], "gloo") for mesh in plan.meshes}
    engine = Engine(plan, settings, device, flows(plan, settings), ranks, cpu_groups, {})
    made: dict[tuple[str, Layout], Axes] = {}
    for stage in plan.stages:
        if stage.layout is not None:
            shape = _shape(stage.layout)
            key = (stage.mesh, shape)
            if key not in made:
                made[key] = axes_of(ranks[stage.mesh], stage.layout, device.type)
            engine.axes[stage.name] = made[key]
    _build_models(engine)
    _build_routes(engine)
    _build_prompts(engine)
    return engine


def _shape(layout: Layout) -> Layout:
    """Return what of a layout decides its groups."""
    if isinstance(layout, EngineLayout):
        return EngineLayout(replicas=layout.replicas, engine_dp=layout.engine_dp, tp=layout.tp)
    names = ("dp", "ulysses", "tp", "pp", "zero", "shard_size")
    return ShardedLayout(**{name: getattr(layout, name) for name in names})


def folder_of(settings: Settings, role: str, kind: str = "weights") -> Path:
    """Return the folder of a role's weights or tokenizer. Raises InputError if the pipeline leaves it out."""
    model = settings.pipeline["models"][role]
    text = model.get(kind) or model.get("weights")
    if not text:
        raise InputError(f"models.{role}.weights is missing: a run needs it", hint="name the folder and compile again")
    return Path(str(text))


def _build_models(engine: Engine) -> None:
    """Train stages first: passes over a trained role on its mesh share their model."""
    order = sorted(engine.plan.stages, key=lambda stage: (stage.op != Op.TRAIN, stage.op == Op.GENERATE))
    for stage in order:
        if stage.layout is None or not engine.on(stage.name):
            continue
        if isinstance(stage.layout, EngineLayout):
            engine.decoders[stage.name] = _decoder(engine, stage, stage.layout)
        elif (stage.model, stage.mesh) not in engine.workers:
            engine.workers[stage.model, stage.mesh] = _worker(engine, stage)


def _head(engine: Engine, stage: PlannedStage) -> str:
    return str(engine.plan.graph.stage(stage.name).attribute("head", "logits"))


def _worker(engine: Engine, stage: PlannedStage) -> Worker:
    settings, train = engine.settings, stage.op == Op.TRAIN
    head = _head(engine, stage)
    worker = Worker(
        load_model(folder_of(settings, stage.model), head),
        head,
        engine.axes[stage.name],
        str(settings.options["precision"]),
        engine.device,
        settings.temperature,
        train,
    )
    if train:
        rate = settings.learning_rate
        if stage.model == "critic":
            rate = float(settings.options["critic_learning_rate"]) or rate
        options = {key: settings.options[key] for key in ("weight_decay", "gradient_clip", "warmup_steps")}
        worker.optimizer = Optimizer(worker.named_parameters(), worker.axes, rate, options)
    return worker


def _decoder(engine: Engine, stage: PlannedStage, layout: EngineLayout) -> Decoder:
    settings, axes = engine.settings, engine.axes[stage.name]
    precision = "fp32" if settings.options["precision"] == "fp32" else "bf16"
    source = load_model(folder_of(settings, stage.model), "logits")
    worker = Worker(source, "logits", axes, "fp32", engine.device, settings.temperature, train=False)
    model = worker.parts[0]
    if precision == "bf16":
        model.to(torch.bfloat16)
    group = axes.tensor.get_group() if axes.tensor is not None else None
    length = settings.max_prompt_tokens + settings.max_response_tokens
    return Decoder(model, layout.max_sequences, length, engine.device, group)


def _build_routes(engine: Engine) -> None:
    plan = engine.plan
    for stage in plan.graph.of_op(Op.SYNC):
        source, target = sync_ends(engine, stage)
        ranks = engine.ranks[target.mesh]
        union_ranks = sorted({*engine.ranks[source.mesh], *ranks})
        union = new_group(union_ranks)
        if dist.get_rank() not in union_ranks:
            continue
        shapes = _shapes(engine, source, target)
        layers = int(engine.settings.pipeline["architectures"][stage.model]["layers"])
        engine.routes[stage.name] = Route(engine.axes[source.name], ranks, union, shapes, layers)


def sync_ends(engine: Engine, stage: Stage) -> tuple[PlannedStage, PlannedStage]:
    """Return the train stage that a sync publishes, and the stage that gets the weights."""
    source = next(edge.source for edge in engine.plan.graph.into(stage.name) if edge.carries_weights)
    target = next(edge.target for edge in engine.plan.graph.out_of(stage.name) if edge.carries_weights)
    return engine.plan.stage(source), engine.plan.stage(target)


def _shapes(engine: Engine, source: PlannedStage, target: PlannedStage) -> dict[str, torch.Size]:
    """Return every tensor of a role, in the order of the model, with its whole shape: the same on all ranks."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder_of(engine.settings, source.model), local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def _build_prompts(engine: Engine) -> None:
    """Read prompts where they are generated from."""
    if not engine.decoders:
        return
    settings = engine.settings
    data = settings.pipeline["data"] or {}
    if not data.get("train"):
        raise InputError("data.train is missing: a run needs prompts", hint="name the file and compile again")
    engine.tokenizer = load_tokenizer(folder_of(settings, "actor", "tokenizer"))
    engine.prompts = PromptFile(
        Path(data["train"]), data["prompt_key"], data["answer_key"], engine.tokenizer, settings.max_prompt_tokens
    )
    ends = {engine.tokenizer.eos_token_id}
    config = next(iter(engine.decoders.values())).model.config
    listed = getattr(config, "eos_token_id", None)
    ends |= set(listed if isinstance(listed, list) else [listed])
    engine.ends = frozenset(int(token) for token in ends if token is not None)
