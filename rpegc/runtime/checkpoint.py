"""Checkpoints by torch.distributed.checkpoint: whole or not there, of any layout for any layout.

A checkpoint is written beside its place, synced, and renamed by one rank when all are done. Names are those of the
weights, so that the layout that reads it may be another than the one that wrote it.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from rpegc.runtime.worker import Worker

META = "run.json"


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint knows beside tensors: steps done, optimizer updates by role, generation carried over."""

    step: int
    updates: Mapping[str, int]
    carried: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of a run, in a folder that every rank sees."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, max(keep, 1)

    def latest(self) -> Path | None:
        """Return the newest whole checkpoint."""
        found = sorted(path for path in self.folder.glob("step-*") if (path / META).is_file())
        return found[-1] if found else None

    def save(self, saved: Saved, workers: Mapping[str, Worker]) -> bool:
        """Write a checkpoint; every rank calls it. False, with a warning, if it could not be written."""
        place = self.folder / f"step-{saved.step:06d}"
        fresh = self.folder / f".{place.name}.new"
        carried, updates = _gathered(dict(saved.carried)), _gathered(dict(saved.updates))
        first = dist.get_rank() == 0

        def prepare() -> None:
            if first:
                shutil.rmtree(fresh, ignore_errors=True)
                fresh.mkdir(parents=True)

        def finish() -> None:
            if first:
                _finish(fresh, place, {"step": saved.step, "updates": updates, "carried": carried})

        problems: list[str] = []
        for action in (prepare, lambda: _write(_tensors(workers), fresh), finish):
            problems = problems or _problems(action)
        if problems:
            if first:
                shutil.rmtree(fresh, ignore_errors=True)
                warnings.warn(f"no checkpoint of step {saved.step}: {problems[0][:500]}", stacklevel=2)
            return False
        if first:
            for old in sorted(self.folder.glob("step-*"))[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)
        dist.barrier()
        return True

    def load(self, place: Path, workers: Mapping[str, Worker]) -> Saved:
        """Read a checkpoint into the workers; every rank calls it."""
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint import load as load_tensors

        meta = json.loads((place / META).read_text(encoding="utf-8"))
        load_tensors(_tensors(workers), storage_reader=FileSystemReader(place))
        for role, worker in workers.items():
            assert worker.optimizer is not None, f"{role} is trained"
            worker.optimizer.resume(meta["updates"][role])
        return Saved(meta["step"], meta["updates"], meta["carried"])


def _tensors(workers: Mapping[str, Worker]) -> dict[str, Tensor]:
    """Return every tensor of this rank by its name in a checkpoint."""
    found: dict[str, Tensor] = {}
    for role, worker in workers.items():
        assert worker.optimizer is not None, f"{role} is trained"
        for name, parameter in worker.named_parameters().items():
            found[f"{role}/weights/{name}"] = parameter.data
        for name, moment, tensor in worker.optimizer.states():
            found[f"{role}/{moment}/{name}"] = tensor
    return found


def _write(tensors: dict[str, Tensor], folder: Path) -> None:
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint import save as save_tensors

    save_tensors(tensors, storage_writer=FileSystemWriter(folder))


def _finish(fresh: Path, place: Path, meta: dict[str, Any]) -> None:
    """Write the last file and rename: from here on the checkpoint exists."""
    with (fresh / META).open("w", encoding="utf-8") as file:
        json.dump(meta, file)
        file.flush()
        os.fsync(file.fileno())
    if place.exists():
        shutil.rmtree(place)
    fresh.rename(place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _problems(action: Callable[[], None]) -> list[str]:
    """Do something on every rank; return what went wrong on any of them, the same on all."""
    from torch.distributed.checkpoint import CheckpointException  # no Exception, but a BaseException

    problem = ""
    try:
        action()
    except (Exception, CheckpointException) as error:  # a full disk has many forms, on this rank or another
        problem = f"{type(error).__name__}: {error}"
    return [text for text in _all(problem) if text]


def _all(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def _gathered(mine: dict[str, Any]) -> dict[str, Any]:
    everything: dict[str, Any] = {}
    for part in _all(mine):
        everything |= part
    return everything
