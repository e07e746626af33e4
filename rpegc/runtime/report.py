"""What all ranks report of a step, gathered by a thread of rank 0: metrics, ledger, trace, progress."""

from __future__ import annotations

import json
import math
import os
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rpegc.runtime.metrics import Log, Progress, chrome_trace, stage_figures
from rpegc.runtime.values import ValueStore

TRACED_STEPS = 64
"""Steps whose spans the Chrome trace of a run keeps: the last ones."""


@dataclass(frozen=True, slots=True)
class Report:
    """A sender's part in a step: learning figures, a line of the ledger (from one rank), spans of its stages."""

    figures: dict[str, Any]
    ledger: dict[str, Any] | None
    spans: list[dict[str, Any]]


class ReportSender:
    """Sends reports to rank 0. One a thread."""

    def __init__(self, store: Any) -> None:
        self.values = ValueStore(store, keep=8)

    def send(self, sender: str, step: int, report: Report) -> None:
        """Send the report of a step."""
        self.values.put_bytes(f"report/{sender}/{step}", json.dumps(asdict(report)).encode(), step)


class Reporter(threading.Thread):
    """Waits for the reports of every step in turn, and writes `metrics.jsonl`, `ledger.jsonl` and `trace.json`."""

    def __init__(self, store: Any, folder: Path, name: str, senders: Sequence[str], first: int, total: int) -> None:
        super().__init__(name="reporter", daemon=True)
        self.values, self.folder, self.plan_name, self.senders = ValueStore(store, keep=8), folder, name, senders
        self.first, self.total = first, total
        self.metrics = Log(folder / "metrics.jsonl", first)
        self.ledger = Log(folder / "ledger.jsonl", first)
        self.progress = Progress(total)
        self.spans: list[dict[str, Any]] = []
        self._done = first
        self._changed = threading.Condition()

    def run(self) -> None:
        """Write step after step. A run that stops early leaves the thread waiting: it dies with the process."""
        try:
            self._run()
        except BaseException:  # the run waits for this thread at its next fence
            traceback.print_exc()
            os._exit(4)

    def _run(self) -> None:
        before = time.time()
        for step in range(self.first, self.total):
            texts = [self.values.get_bytes(f"report/{sender}/{step}") for sender in self.senders]
            reports = [Report(**json.loads(text)) for text in texts]
            now = time.time()
            self._write(step, reports, now - before)
            before = now
            with self._changed:
                self._done = step + 1
                self._changed.notify_all()

    def wait(self, done: int) -> None:
        """Return when all steps before `done` are written."""
        with self._changed:
            self._changed.wait_for(lambda: self._done >= done)

    def close(self) -> None:
        """Write the trace of the last steps."""
        (self.folder / "trace.json").write_text(chrome_trace(self.plan_name, self.spans), encoding="utf-8")

    def _write(self, step: int, reports: Sequence[Report], seconds: float) -> None:
        self.spans = [span for span in self.spans if span["step"] > step - TRACED_STEPS]
        figures: dict[str, Any] = {}
        for report in reports:
            figures |= {name: _finite(value) for name, value in report.figures.items() if not name.startswith("_")}
            self.spans += report.spans
            if report.ledger is not None:
                self.ledger.write(report.ledger)
        self.metrics.write({"step": step, "step_seconds": seconds, **figures, **stage_figures(self.spans, step)})
        shown = {
            name: figures[name] for name in ("reward_mean", "loss", "staleness_max") if figures.get(name) is not None
        }
        self.progress.show(step, {**shown, "s": seconds})


def _finite(value: Any) -> Any:
    """Return a figure, or None for one that is no number: JSON knows no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
