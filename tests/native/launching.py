"""Start the native engine in several processes and read what it leaves behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rpegc.plan import Plan

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PATIENCE_S = 900
"""A launch that takes longer hangs: the machine may be busy with other things."""


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


def launch(processes: int, *arguments: str, restarts: int = 0) -> str:
    """Run a script in some processes; return what they printed. Fails with the output if one fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = min(probe.getsockname()[1], 65000)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    command += [f"--master-port={port}", "--master-addr=127.0.0.1", f"--max-restarts={restarts}", *arguments]
    done = subprocess.run(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def write(plan: Plan, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    return path


def run_all(processes: int, plans: Mapping[str, Plan], folder: Path) -> None:
    """Run plans one after another in one set of processes; each leaves a folder of its name."""
    arguments = []
    for name, plan in plans.items():
        arguments += [str(write(plan, folder / name)), str(folder / name)]
    launch(processes, str(HERE / "native_many.py"), *arguments)


def lines(folder: Path, name: str = "metrics") -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def curve(folder: Path, key: str = "loss") -> list[float]:
    return [record[key] for record in lines(folder)]
