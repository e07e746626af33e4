"""Whether a step may begin: asked once a step, answered by one rank for all, so that all stop after the same step."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from rpegc.runtime.values import PATIENCE

BEAT_S = 1.0
"""Seconds between two signs of life of a process."""
SILENT_S = 10.0
"""Seconds without one after which a process counts as dead, once the others are asked to stop."""


class StopRequest:
    """Whether somebody asked this process to stop: SIGTERM, or SIGUSR1 from a batch system before its time is over.

    A thread notes it: Python's own handler would wait until the main thread leaves a collective, which it never does
    when the process at the other end has died.
    """

    def __init__(self) -> None:
        self.asked = False
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: None)  # the byte that arrives in the pipe is what counts
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def _listen(self) -> None:
        while number := os.read(self._read, 1):
            self.asked |= number[0] in (signal.SIGTERM, signal.SIGUSR1)


class Heartbeat(threading.Thread):
    """Tells the others that this process lives; ends it where it is asked to stop and another has died.

    A launcher that ends a run because a process died sends the same signal as one that wants a checkpoint. Without the
    dead one no step can end, so that waiting for it would only cost the launcher's patience.
    """

    def __init__(self, store: Any, stop: StopRequest) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.store, self.stop = store, stop
        self._ended = threading.Event()

    def run(self) -> None:
        """Beat until the run ends."""
        beats, seen = 0, dict[int, tuple[bytes, float]]()
        try:
            while not self._ended.wait(BEAT_S):
                beats += 1
                self.store.set(f"beat/{dist.get_rank()}", str(beats))
                if self.stop.asked and self._somebody_is_silent(seen):
                    sys.stderr.write("another process has died: this one ends without a checkpoint\n")
                    os._exit(1)
        except Exception:  # the store is gone, and with it the launcher; or the run has just ended
            if not self._ended.wait(BEAT_S):
                os._exit(1)

    def _somebody_is_silent(self, seen: dict[int, tuple[bytes, float]]) -> bool:
        now = time.monotonic()
        for rank in range(dist.get_world_size()):
            key = f"beat/{rank}"
            beat = bytes(self.store.get(key)) if self.store.check([key]) else b""
            if rank not in seen or seen[rank][0] != beat:
                seen[rank] = beat, now
        return any(now - since > SILENT_S for _, since in seen.values())

    def end(self) -> None:
        """The run is over."""
        self._ended.set()
        self.join(timeout=2 * BEAT_S)


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
