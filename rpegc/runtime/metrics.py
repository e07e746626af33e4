"""What a run leaves behind: a JSONL line a step, the ledger of prompts, a Chrome trace, a progress bar.

`metrics.jsonl` holds, for every step, learning figures and `stage_seconds`: for every stage the seconds of the slowest
rank, without waiting for inputs (`stage_wait_seconds` has those). `calibrate` reads it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Clock:
    """Spans of this rank's stages. Times are wall-clock seconds, so that ranks of one machine compare."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.spans: list[dict[str, Any]] = []
        self._wait = 0.0

    @contextmanager
    def stage(self, name: str, step: int, mesh: str) -> Iterator[None]:
        """Measure a stage of a step."""
        start, self._wait = time.time(), 0.0
        try:
            yield
        finally:
            end = time.time()
            span = {"stage": name, "step": step, "mesh": mesh, "rank": self.rank, "start_s": start, "end_s": end}
            self.spans.append({**span, "wait_s": min(self._wait, end - start)})

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure time that the current stage waits for what it needs."""
        start = time.time()
        try:
            yield
        finally:
            self._wait += time.time() - start

    def take(self) -> list[dict[str, Any]]:
        """Return the spans so far and forget them."""
        spans, self.spans = self.spans, []
        return spans


def stage_figures(spans: list[dict[str, Any]], step: int) -> dict[str, dict[str, float]]:
    """Return seconds of work and of waiting of every stage in a step: those of its slowest rank."""
    work: dict[str, float] = defaultdict(float)
    wait: dict[str, float] = defaultdict(float)
    for span in spans:
        if span["step"] == step:
            seconds = span["end_s"] - span["start_s"] - span["wait_s"]
            work[span["stage"]] = max(work[span["stage"]], seconds)
            wait[span["stage"]] = max(wait[span["stage"]], span["wait_s"])
    return {"stage_seconds": dict(sorted(work.items())), "stage_wait_seconds": dict(sorted(wait.items()))}


class Log:
    """A file of JSON lines that survives restarts: lines of steps that are run again are cut off first."""

    def __init__(self, path: Path, first_step: int) -> None:
        kept = []
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    break  # the line that was being written when the process died
                if record["step"] < first_step:
                    kept.append(line + "\n")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(kept), encoding="utf-8")
        fresh.replace(path)
        self.path = path

    def write(self, record: dict[str, Any]) -> None:
        """Add a line; a crash of ours afterwards does not lose it."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")


def chrome_trace(name: str, spans: list[dict[str, Any]]) -> str:
    """Return a real run in Chrome's trace format: a row a rank, times in microseconds from the first span."""
    origin = min((span["start_s"] for span in spans), default=0.0)
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": f"{name} (run)"}}
    ]
    for rank in sorted({span["rank"] for span in spans}):
        events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": rank, "args": {"name": f"rank {rank}"}})
    for span in spans:
        events.append(
            {
                "name": span["stage"],
                "cat": span["mesh"],
                "ph": "X",
                "pid": 1,
                "tid": span["rank"],
                "ts": round((span["start_s"] - origin) * 1e6),
                "dur": round((span["end_s"] - span["start_s"]) * 1e6),
                "args": {"step": span["step"], "wait_s": round(span["wait_s"], 6)},
            }
        )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, indent=1) + "\n"


class Progress:
    """A line on the terminal that says how far the run is; silent where nobody looks."""

    def __init__(self, total: int) -> None:
        self.total, self.shown = total, sys.stderr.isatty()

    def show(self, step: int, figures: dict[str, Any]) -> None:
        """Say that a step is over."""
        if not self.shown:
            return
        done = round(30 * (step + 1) / self.total)
        bar = "#" * done + "." * (30 - done)
        text = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        sys.stderr.write(f"\r\x1b[K[{bar}] {step + 1}/{self.total}  {text}" + ("\n" if step + 1 == self.total else ""))
        sys.stderr.flush()
