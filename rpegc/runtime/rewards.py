"""The user's reward function in worker processes with limits: a crash, a hang or a wrong answer scores zero.

The function is called as verl calls it, `score(data_source, solution_str, ground_truth, extra_info=None)`, and returns
a number or a mapping with the key `score`. Each process judges one sample at a time, so that a limit costs one sample.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpegc.errors import InputError

START_S = 60.0
"""Seconds granted for starting a process and importing the user's file."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the function is given."""

    source: str
    response: str
    answer: Any
    prompt: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A score and, where the function failed, why."""

    score: float
    failure: str = ""


class RewardWorkers:
    """Processes that judge samples. `reference` is `path/to/file.py:function`."""

    def __init__(self, reference: str, workers: int, limit_s: float, limit_bytes: int) -> None:
        file, _, name = reference.rpartition(":")
        if not Path(file).is_file():
            raise InputError(
                f"reward.function: {file} is no file", hint="paths start in the folder that the run starts in"
            )
        self.call = (str(Path(file).resolve()), name, limit_bytes)
        self.workers, self.limit_s = workers, limit_s
        self._idle: list[_Process] = []

    def judge(self, samples: Sequence[Sample]) -> list[Verdict]:
        """Return a verdict for each sample, in their order. Raises InputError if the function cannot be loaded."""
        verdicts: list[Verdict | None] = [None] * len(samples)
        waiting = list(enumerate(samples))[::-1]
        busy: list[_Process] = []
        while waiting or busy:
            while waiting and len(busy) < self.workers:
                process = self._idle.pop() if self._idle else _Process(self.call)
                process.give(*waiting.pop(), self.limit_s)
                busy.append(process)
            timeout = max(0.0, min(process.deadline for process in busy) - time.monotonic())
            multiprocessing.connection.wait([process.pipe for process in busy], timeout)
            still: list[_Process] = []
            for process in busy:
                verdict = process.poll(self.limit_s)
                if verdict is None:
                    still.append(process)
                    continue
                verdicts[process.number] = verdict
                if process.alive:
                    self._idle.append(process)
            busy = still
        return [verdict or Verdict(0.0, "no verdict") for verdict in verdicts]

    def close(self) -> None:
        """End all processes."""
        for process in self._idle:
            process.end()
        self._idle = []


class _Process:
    """One worker and the sample that it has."""

    def __init__(self, call: tuple[str, str, int]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, *call), daemon=True)
        self.process.start()
        theirs.close()
        self.alive, self.ready, self.number = True, False, -1
        self.sample: Sample | None = None
        self.deadline = math.inf

    def give(self, number: int, sample: Sample, limit_s: float) -> None:
        """Hand over a sample; a new process first says that it is ready."""
        self.number, self.sample = number, sample
        self.deadline = time.monotonic() + (limit_s if self.ready else START_S)
        if self.ready:
            self._send(limit_s)

    def _send(self, limit_s: float) -> None:
        assert self.sample is not None, "a process judges a sample"
        self.deadline = time.monotonic() + limit_s
        try:
            self.pipe.send((self.sample.source, self.sample.response, self.sample.answer, self.sample.prompt))
        except OSError:
            self.deadline = 0.0

    def poll(self, limit_s: float) -> Verdict | None:
        """Return the verdict, or None while there is none."""
        try:
            if self.pipe.poll():
                kind, value = self.pipe.recv()
                if kind == "ready":
                    self.ready = True
                    self._send(limit_s)
                    return None
                if kind == "broken":
                    self.end()
                    raise InputError(f"reward.function: {value}")
                return Verdict(*value)
        except (EOFError, OSError):
            self.end()
            return Verdict(0.0, f"the process died with exit code {self.process.exitcode}")
        if time.monotonic() >= self.deadline:
            self.end()
            return Verdict(0.0, f"no answer within {limit_s:g} s")
        return None

    def end(self) -> None:
        """Kill the process."""
        self.alive = False
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Any, file: str, name: str, limit_bytes: int) -> None:
    """Load the function and answer until the other side is gone."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        function = _load(file, name)
    except BaseException as error:
        pipe.send(("broken", f"{file}:{name} cannot be loaded ({type(error).__name__}: {error})"))
        return
    pipe.send(("ready", None))
    while True:
        try:
            source, response, answer, prompt = pipe.recv()
        except EOFError:
            return
        try:
            result = function(source, response, answer, extra_info={"prompt": prompt})
            score = float(result["score"] if isinstance(result, Mapping) else result)
            verdict = (score, "") if math.isfinite(score) else (0.0, f"returned {score}")
        except Exception as error:
            verdict = (0.0, f"{type(error).__name__}: {error}")
        pipe.send(("verdict", verdict))


def _load(file: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location("rpegc_reward", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
