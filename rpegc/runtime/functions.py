"""Functions of the host (rewards, advantages), on a thread beside the stages of the GPUs.

Rewards of a part are judged where the part was made, in worker processes; advantages on the first rank of the mesh that
uses them. The thread goes through its functions in the plan's order and waits in the store for their inputs.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist

from rpegc.errors import RpegcError
from rpegc.ir.graph import Op
from rpegc.runtime.advantages import Estimate, advantages
from rpegc.runtime.flow import is_reward, sample_sources
from rpegc.runtime.gate import Gate
from rpegc.runtime.metrics import Clock
from rpegc.runtime.program import Instance
from rpegc.runtime.rewards import RewardWorkers, Sample, Verdict
from rpegc.runtime.rows import Rows, merged
from rpegc.runtime.setup import Engine
from rpegc.runtime.stages import gather
from rpegc.runtime.values import ValueStore

HOST = "host"
"""The row of the trace that functions are shown in."""


class FunctionLane:
    """The functions that this rank runs, on one thread with a connection of its own to the store."""

    def __init__(self, engine: Engine, values: ValueStore, clock: Clock) -> None:
        self.engine, self.values, self.clock = engine, values, clock
        self.names = [stage.name for stage in engine.plan.graph.of_op(Op.FUNCTION) if self._mine(stage.name)]
        self.figures: dict[int, dict[str, Any]] = {}
        self._workers: RewardWorkers | None = None
        self._thread: threading.Thread | None = None

    def _mine(self, name: str) -> bool:
        graph = self.engine.plan.graph
        maker = self._maker(name)
        if maker:
            axes = self.engine.axes[maker]
            return bool(axes.member and axes.tensor_place == 0)
        users = [edge.target for edge in graph.out_of(name)]
        meshes = [self.engine.plan.stage(user).mesh for user in users] + [self.engine.plan.meshes[0].name]
        return bool(dist.get_rank() == self.engine.ranks[next(mesh for mesh in meshes if mesh)][0])

    def _maker(self, name: str) -> str:
        """Return the generate stage whose parts a function judges one by one, or ""."""
        graph = self.engine.plan.graph
        makers = [source for source in sample_sources(graph, name) if graph.stage(source).op is Op.GENERATE]
        return makers[0] if makers and is_reward(graph, name) else ""

    def start(self, instances: Iterable[Instance], gate: Gate, report: Callable[[int], None]) -> None:
        """Begin the functions of some steps; `report` is called when those of a step are done."""
        mine = [instance for instance in instances if instance.stage in self.names]
        self._thread = threading.Thread(target=self._run, args=(mine, gate, report), name="functions", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for them."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the reward processes."""
        if self._workers is not None:
            self._workers.close()

    def _run(self, instances: list[Instance], gate: Gate, report: Callable[[int], None]) -> None:
        last = {instance.step: number for number, instance in enumerate(instances)}
        try:
            for number, instance in enumerate(instances):
                if not gate.allows(instance.step):
                    continue
                with self.clock.stage(instance.stage, instance.step, HOST):
                    self._function(instance)
                if last[instance.step] == number:
                    report(instance.step)
        except RpegcError as error:  # other ranks wait for what will not come: the launcher must end them
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
            os._exit(error.exit_code)
        except BaseException:
            traceback.print_exc()
            os._exit(4)

    def _function(self, instance: Instance) -> None:
        name, step, maker = instance.stage, instance.step, self._maker(instance.stage)
        for wave in range(self.engine.flows[name].waves):
            if maker:
                part = self.engine.axes[maker].data_place
                with self.clock.waiting():
                    rows = self._own_part(name, maker, step, wave)
                self.values.put(name, step, wave, part, self._judge(rows, step))
            else:
                with self.clock.waiting():
                    batch = gather(self.engine, self.values, name, step, wave)
                self.values.put(name, step, wave, 0, advantages(batch, self._estimate()))
                self._note(batch, step)

    def _own_part(self, name: str, maker: str, step: int, wave: int) -> Rows:
        """Wait for what this rank's replica made in a wave, or in all waves if the function does not stream."""
        made, part = self.engine.flows[maker].waves, self.engine.axes[maker].data_place
        waves = [wave] if made == self.engine.flows[name].waves else range(made)
        keys = (f"{maker}/{step}/{number}/{part}" for number in waves)
        return merged(Rows.from_bytes(self.values.get_bytes(key)) for key in keys)

    def _judge(self, rows: Rows, step: int) -> Rows:
        engine = self.engine
        assert engine.prompts is not None, "rewards are judged where prompts are"
        samples, order = [], rows.index
        for row in order:
            prompt = engine.prompts.at(int(rows.scalar("place", row)), engine.settings.seed)
            answer = rows.column("tokens")[row][int(rows.scalar("prompt_length", row)) :]
            text = engine.tokenizer.decode(answer.tolist(), skip_special_tokens=True)
            samples.append(Sample(prompt.source, text, prompt.answer, prompt.text))
        verdicts = self._reward_workers().judge(samples)
        result = Rows()
        for row, verdict in zip(order, verdicts, strict=True):
            length = len(rows.column("tokens")[row]) - int(rows.scalar("prompt_length", row))
            result.put(row, rewards=[verdict.score], response_length=[length])
        self._warn(verdicts, step)
        return result

    def _warn(self, verdicts: list[Verdict], step: int) -> None:
        failures = [verdict.failure for verdict in verdicts if verdict.failure]
        if failures:
            first = failures[0]
            warnings.warn(f"step {step}: the reward of {len(failures)} samples is 0: {first}", stacklevel=2)
            self.figures.setdefault(step, {})["reward_failures"] = len(failures)

    def _reward_workers(self) -> RewardWorkers:
        if self._workers is None:
            block, options = self.engine.settings.pipeline["reward"], self.engine.settings.options
            cores = max((os.cpu_count() or 1) // max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1), 1)
            self._workers = RewardWorkers(
                block["function"],
                min(int(block["workers_per_node"]), cores),
                float(options["reward_limit_s"]),
                int(options["reward_limit_bytes"]),
            )
        return self._workers

    def _estimate(self) -> Estimate:
        settings = self.engine.settings
        coefficient, where, estimator = settings.kl
        options = settings.options
        return Estimate(
            estimator=str(options["advantage"]),
            samples=settings.samples,
            by_deviation=bool(options["normalise_by_deviation"]),
            discount=float(options["discount"]),
            gae_lambda=float(options["gae_lambda"]),
            kl_coefficient=coefficient if where == "reward" else 0.0,
            kl_estimator=estimator,
        )

    def _note(self, batch: Rows, step: int) -> None:
        figures = self.figures.setdefault(step, {})
        for name, key in (("rewards", "reward"), ("model_rewards", "model_reward")):
            if name in batch.columns:
                values = [float(value[0]) for value in batch.column(name).values()]
                sums = figures.setdefault(f"_{key}", [])
                sums += values
                figures[f"{key}_mean"] = sum(sums) / len(sums)
