"""What this rank does for each stage of a step. `StageRunner.run` dispatches by op: a new op is a new entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from rpegc.errors import InputError
from rpegc.ir.graph import Op
from rpegc.plan import PlannedStage
from rpegc.runtime.decode import Sampling
from rpegc.runtime.flow import sample_sources
from rpegc.runtime.generating import Replica, Share
from rpegc.runtime.learning import Update, lesson_of, minibatches, prepare
from rpegc.runtime.metrics import Clock
from rpegc.runtime.program import Instance, weight_distance
from rpegc.runtime.reshard import publish
from rpegc.runtime.rows import Rows, merged
from rpegc.runtime.setup import Engine, sync_ends
from rpegc.runtime.values import ValueStore, share
from rpegc.target import EngineLayout


class StageRunner:
    """Runs the stages of this rank's meshes. `versions` holds the version of each generate stage's weights."""

    def __init__(self, engine: Engine, values: ValueStore, clock: Clock) -> None:
        self.engine, self.values, self.clock = engine, values, clock
        self.versions: dict[str, int] = {}
        self.figures: dict[int, dict[str, Any]] = {}
        self.ledger: dict[int, dict[str, Any]] = {}
        self.replicas = {name: self._replica(name) for name in engine.decoders}
        self._operations: dict[Op, Callable[[PlannedStage, int], None]] = {
            Op.GENERATE: self._generate,
            Op.FORWARD: self._forward,
            Op.TRAIN: self._train,
            Op.SYNC: self._sync,
        }

    def takes_part(self, name: str) -> bool:
        """Whether this rank has work in a stage (functions run beside, see `functions.py`)."""
        stage = self.engine.plan.stage(name)
        return name in self.engine.routes if stage.op == Op.SYNC else self.engine.on(name)

    def run(self, instance: Instance) -> None:
        """Run a stage of a step, if this rank takes part in it."""
        stage = self.engine.plan.stage(instance.stage)
        operation = self._operations.get(Op(stage.op))
        if operation is None or not self.takes_part(stage.name):
            return
        with self.clock.stage(stage.name, instance.step, stage.mesh):
            operation(stage, instance.step)

    # --- generate -----------------------------------------------------------------------------------------------------

    def _replica(self, name: str) -> Replica:
        engine, settings = self.engine, self.engine.settings
        layout = engine.plan.stage(name).layout
        assert isinstance(layout, EngineLayout), f"{name} generates"
        assert engine.prompts is not None, "prompts are read where a stage generates"
        count = layout.replicas * layout.engine_dp
        if settings.prompts % count:
            raise InputError(f"{count} replicas of {name} must divide the {settings.prompts} prompts of a step")
        groups = settings.prompts // count
        partial = any(rewrite.name == "partial-rollout" for rewrite in engine.plan.graph.rewrites)
        mine = Share(
            replica=engine.axes[name].data_place,
            groups=groups,
            samples=settings.samples,
            waves=engine.flows[name].waves,
            seed=settings.seed,
            carries=max(1, groups // 2) if partial else 0,
            bound=engine.plan.staleness.bound,
        )
        sampling = Sampling(settings.max_response_tokens, settings.temperature, engine.ends)
        return Replica(engine.decoders[name], engine.prompts, mine, sampling, settings.prompts)

    def _generate(self, stage: PlannedStage, step: int) -> None:
        replica, axes = self.replicas[stage.name], self.engine.axes[stage.name]
        replica.decoder.wake()
        for wave, rows in replica.waves(step, self.versions[stage.name]):
            if axes.tensor_place == 0:
                self.values.put(stage.name, step, wave, replica.share.replica, rows)
        if isinstance(stage.layout, EngineLayout) and stage.layout.offload:
            replica.decoder.sleep()

    # --- forward ------------------------------------------------------------------------------------------------------

    def _forward(self, stage: PlannedStage, step: int) -> None:
        worker = self.engine.worker(stage)
        name = next(edge.value for edge in self.engine.plan.graph.out_of(stage.name) if not edge.carries_weights)
        for wave, batch in self._waves(stage, step):
            scores = worker.score(batch, batch.index, name)
            if worker.axes.speaks:
                self.values.put(stage.name, step, wave, worker.axes.row_place, scores)

    # --- train --------------------------------------------------------------------------------------------------------

    def _train(self, stage: PlannedStage, step: int) -> None:
        engine, settings = self.engine, self.engine.settings
        worker, graph = engine.worker(stage), engine.plan.graph
        used = {edge.value for edge in graph.into(stage.name) if not edge.carries_weights}
        stale = engine.plan.staleness.bound > 0
        lesson = lesson_of(settings, worker.head, used, stale)
        aggregation = "token-mean" if worker.head == "scalar" else str(settings.options["aggregation"])
        updates: list[dict[str, float]] = []
        seen: list[Rows] = []
        if settings.minibatches * settings.epochs == 1:
            update = Update(worker, lesson, aggregation)
            for _, batch in self._waves(stage, step):
                update.add(batch, batch.index, prepare(batch, settings, lesson, step))
                seen.append(batch)
            updates.append(update.finish())
        else:
            _, batch = next(self._waves(stage, step))
            lengths = prepare(batch, settings, lesson, step)
            seen.append(batch)
            for _ in range(settings.epochs):
                for rows in minibatches(batch.index, settings.minibatches):
                    update = Update(worker, lesson, aggregation)
                    update.add(batch, rows, lengths)
                    updates.append(update.finish())
        if dist.get_rank() == worker.axes.owner:
            self._record(stage, step, merged(seen), updates)

    def _record(self, stage: PlannedStage, step: int, batch: Rows, updates: list[dict[str, float]]) -> None:
        """Note what an update learned, and of what age its samples were. Raises RuntimeError beyond the bound."""
        mean = {key: sum(update[key] for update in updates) / len(updates) for key in updates[0]}
        prefix = "" if stage.model == "actor" else f"{stage.model}_"
        self.figures.setdefault(step, {}).update({prefix + key: value for key, value in mean.items()})
        if stage.model != "actor":
            return
        rows = batch.index
        staleness = [step - int(batch.scalar("version", row)) for row in rows]
        bound = self.engine.plan.staleness.bound
        if max(staleness) > bound:
            raise RuntimeError(f"step {step} trains on a sample {max(staleness)} versions old; the bound is {bound}")
        lengths = [len(batch.column("tokens")[row]) - int(batch.scalar("prompt_length", row)) for row in rows]
        self.figures[step] |= {
            "response_tokens_mean": sum(lengths) / len(lengths),
            "response_tokens_max": max(lengths),
            "tokens": sum(len(batch.column("tokens")[row]) for row in rows),
            "staleness_mean": sum(staleness) / len(staleness),
            "staleness_max": max(staleness),
        }
        firsts = rows[:: self.engine.settings.samples]
        self.ledger[step] = {
            "step": step,
            "places": [int(batch.scalar("place", row)) for row in firsts],
            "prompts": [int(batch.scalar("prompt_number", row)) for row in firsts],
            "versions": [int(batch.scalar("version", row)) for row in rows],
            "staleness": staleness,
        }

    # --- sync ---------------------------------------------------------------------------------------------------------

    def _sync(self, stage: PlannedStage, step: int) -> None:
        self.publish(stage.name, step + 1)

    def publish(self, sync: str, version: int) -> None:
        """Send the trained weights of a sync stage to where they are used; they are of this version."""
        engine = self.engine
        source, target = sync_ends(engine, engine.plan.graph.stage(sync))
        trained: dict[str, Any] = {}
        if engine.on(source.name):
            trained = dict(engine.worker(source).named_parameters())
        used: dict[str, Any] = {}
        if target.name in engine.decoders:
            used = dict(engine.decoders[target.name].model.named_parameters())
            self.versions[target.name] = version
        elif engine.on(target.name):
            used = dict(engine.worker(target).named_parameters())
        publish(engine.routes[sync], trained, used, engine.device, bool(engine.settings.options["debug"]))

    # --- samples ------------------------------------------------------------------------------------------------------

    def _waves(self, stage: PlannedStage, step: int) -> Iterator[tuple[int, Rows]]:
        """Yield what a stage uses of a step, wave by wave; the first rank of its mesh reads it for all."""
        group, owner = self.engine.cpu_groups[stage.mesh], self.engine.ranks[stage.mesh][0]
        for wave in range(self.engine.flows[stage.name].waves):
            with self.clock.waiting():
                rows = gather(self.engine, self.values, stage.name, step, wave) if dist.get_rank() == owner else None
                batch = share(rows, group, owner)
            yield wave, batch


def gather(engine: Engine, values: ValueStore, stage: str, step: int, wave: int) -> Rows:
    """Wait for what a stage uses in a wave: that wave of streamed inputs, all waves of the others."""
    waves, parts = engine.flows[stage].waves, []
    for source in sample_sources(engine.plan.graph, stage):
        flow = engine.flows[source]
        chosen = [wave] if flow.waves == waves else range(flow.waves)
        parts += [values.get(source, step, number, flow.parts) for number in chosen]
    return merged(parts)


def staleness_of(engine: Engine) -> int:
    """Return the largest distance of weights into a generate stage, less one: the age that the graph allows."""
    graph = engine.plan.graph
    return max((weight_distance(graph, stage.name) - 1 for stage in graph.of_op(Op.GENERATE)), default=0)
