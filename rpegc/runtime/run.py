"""Run a plan: steps between checkpoints, stopping on request, going on after a fall.

A checkpoint is a fence: no stage of a later step starts before it is written, so that a run that resumes from it does
what the run that wrote it did. Between fences stages of different steps overlap as the plan says.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from rpegc.errors import InputError
from rpegc.ir.graph import Op
from rpegc.plan import Plan
from rpegc.runtime.checkpoint import Checkpoints, Saved
from rpegc.runtime.functions import FunctionLane
from rpegc.runtime.gate import Gate, Heartbeat, StopRequest
from rpegc.runtime.metrics import Clock
from rpegc.runtime.program import Instance, order, segments
from rpegc.runtime.report import Report, Reporter, ReportSender
from rpegc.runtime.settings import settings_of
from rpegc.runtime.setup import Engine, build, connect
from rpegc.runtime.stages import StageRunner
from rpegc.runtime.values import ValueStore

_RUNS = itertools.count()
"""Numbers the runs of one process, so that none reads what another left in the store."""


@dataclass(frozen=True, slots=True)
class Options:
    """Where a run writes, and how many steps it makes at most (None: as many as the plan says)."""

    folder: Path
    steps: int | None = None


def run(plan: Plan, options: Options) -> int:
    """Run a plan on this rank; return the number of steps that are done. Raises InputError as `build` does."""
    settings = settings_of(plan.pipeline, plan.seed)
    if plan.target.name != "native":
        raise InputError(f"the plan is for {plan.target.name}; the native engine runs plans for `target: native`")
    total = settings.total_steps if options.steps is None else min(options.steps, settings.total_steps)
    stop = StopRequest()
    alone = not dist.is_initialized()
    device = connect(plan)
    torch.manual_seed(plan.seed)
    engine = build(plan, settings, device)
    done = _Run(engine, options, stop).steps(total)
    if alone:
        dist.destroy_process_group()
    return done


class _Run:
    """The loop of one rank."""

    def __init__(self, engine: Engine, options: Options, stop: StopRequest) -> None:
        self.engine, self.options, self.stop = engine, options, stop
        plan, settings = engine.plan, engine.settings
        keep = 2 + max((edge.distance for edge in plan.graph.edges), default=1)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store = dist.PrefixStore(f"rpegc/{attempt}/{next(_RUNS)}", _get_default_store())
        self.clock, self.lane_clock = Clock(dist.get_rank()), Clock(dist.get_rank())
        self.runner = StageRunner(engine, ValueStore(self.store.clone(), keep), self.clock)
        self.lane = FunctionLane(engine, ValueStore(self.store.clone(), keep), self.lane_clock)
        folder = options.folder / str(settings.options["checkpoint_folder"])
        self.checkpoints = Checkpoints(folder, int(settings.options["keep_checkpoints"]))
        self.reports = ReportSender(self.store.clone())
        self.lane_reports = ReportSender(self.store.clone())

    def steps(self, total: int) -> int:
        """Run up to a number of steps, from the last checkpoint on; return the steps that are done."""
        heartbeat = Heartbeat(self.store.clone(), self.stop)
        heartbeat.start()
        try:
            return self._steps(total)
        finally:
            heartbeat.end()

    def _steps(self, total: int) -> int:
        first = self._resume()
        reporter = self._reporter(first, total)
        for stage in self.engine.plan.graph.of_op(Op.SYNC):
            if stage.name in self.engine.routes:
                self.runner.publish(stage.name, first)
        for name in self.engine.decoders:
            self.runner.versions.setdefault(name, first)
        done = first
        for steps in segments(first, total, self.engine.settings.save_every):
            done = self._segment(steps)
            if reporter is not None:
                reporter.wait(done)
            if done > steps.start:
                self._checkpoint(done)
            if done < steps.stop:
                break
        self.lane.close()
        if reporter is not None:
            reporter.close()
        return done

    def _reporter(self, first: int, total: int) -> Reporter | None:
        """Start the thread of rank 0 that writes what all ranks report."""
        lanes: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(lanes, bool(self.lane.names))
        if dist.get_rank() != 0:
            return None
        senders = [f"rank{rank}" for rank in range(len(lanes))]
        senders += [f"functions{rank}" for rank, busy in enumerate(lanes) if busy]
        reporter = Reporter(self.store.clone(), self.options.folder, self.engine.plan.name, senders, first, total)
        reporter.start()
        return reporter

    def _resume(self) -> int:
        """Load the newest checkpoint that rank 0 sees; return the steps that it holds."""
        found: list[Any] = [self.checkpoints.latest() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found, src=0)
        if found[0] is None:
            return 0
        saved = self.checkpoints.load(found[0], self.engine.trained)
        for name, replica in self.runner.replicas.items():
            state = saved.carried.get(f"{name}/{replica.share.replica}")
            if state is not None:
                replica.restore(state)
        return saved.step

    def _segment(self, steps: range) -> int:
        """Run steps up to a fence; return the steps done, fewer if somebody asked to stop."""
        instances = order(self.engine.plan, steps)
        deciders = {step: self._decider(instances, step) for step in steps}
        gate = Gate(self.store.clone(), steps, deciders, self.stop)
        self.lane.start(instances, Gate(self.store.clone(), steps, {}, self.stop), self._report_functions)
        last = {instance.step: number for number, instance in enumerate(instances)}
        for number, instance in enumerate(instances):
            if not gate.allows(instance.step):
                continue
            self.runner.run(instance)
            if last[instance.step] == number:
                figures = self.runner.figures.pop(instance.step, {})
                self.reports.send(
                    f"rank{dist.get_rank()}",
                    instance.step,
                    Report(figures, self.runner.ledger.pop(instance.step, None), self.clock.take()),
                )
        self.lane.join()
        dist.barrier()
        return gate.end

    def _report_functions(self, step: int) -> None:
        figures = self.lane.figures.pop(step, {})
        self.lane_reports.send(f"functions{dist.get_rank()}", step, Report(figures, None, self.lane_clock.take()))

    def _decider(self, instances: tuple[Instance, ...], step: int) -> int:
        """Return the rank that decides whether a step begins: the first of the mesh whose stage is the first of it."""
        first = next(i for i in instances if i.step == step and self.engine.plan.stage(i.stage).mesh)
        return self.engine.ranks[self.engine.plan.stage(first.stage).mesh][0]

    def _checkpoint(self, done: int) -> None:
        carried = {
            f"{name}/{replica.share.replica}": replica.state()
            for name, replica in self.runner.replicas.items()
            if self.engine.axes[name].tensor_place == 0 and replica.share.carries
        }
        updates = {role: w.optimizer.updates for role, w in self.engine.trained.items() if w.optimizer is not None}
        self.checkpoints.save(Saved(done, updates, carried), self.engine.trained)
