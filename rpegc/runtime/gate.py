"""Whether a step may begin: asked once a step, answered by one rank for all, so that all stop after the same step."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from rpegc.runtime.values import PATIENCE


class StopRequest:
    """Whether somebody asked this process to stop: SIGTERM, or SIGUSR1 from a batch system before its time is over."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.asked = True


class Gate:
    """The answers of a run of steps. One a thread; `deciders` maps a step to the rank that answers."""

    def __init__(self, store: Any, steps: range, deciders: Mapping[int, int], stop: StopRequest) -> None:
        self.store, self.deciders, self.stop = store, deciders, stop
        self.end = steps.stop
        self._asked = steps.start
        self.store.set_timeout(PATIENCE)

    def allows(self, step: int) -> bool:
        """Return whether a step begins; what comes after one that does not begin, does not either."""
        if self.stop.asked:
            self.store.set("stop", "1")
        while self._asked <= step and self._asked < self.end:
            if not self._answer(self._asked):
                self.end = self._asked
            self._asked += 1
        return step < self.end

    def _answer(self, step: int) -> bool:
        key = f"begin/{step}"
        if self.deciders.get(step) == dist.get_rank():
            self.store.set(key, "no" if self.store.check(["stop"]) else "yes")
        return bool(self.store.get(key) == b"yes")
