"""Runs verl's own configuration code on emitted files, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "verl_environment"
CACHE = Path(os.environ.get("RPEGC_CACHE", Path(__file__).parent.parent / ".cache"))
DRIVER = "verl.trainer.main_ppo"
ONE_STEP_OFF_DRIVER = "verl.experimental.one_step_off_policy.main_ppo"


def environment(level: str, limit_s: int) -> Path:
    """Return the Python of an environment, made if need be; the test fails if it cannot be made."""
    folder = CACHE / f"verl-{level}"
    made = subprocess.run(
        ["bash", str(HERE / "make_environment.sh"), level, str(folder)],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    if made.returncode:
        pytest.fail(f"the environment verl-{level} cannot be made:\n{made.stderr[-2000:]}")
    return folder / "bin" / "python"


def run(python: Path, program: str, requests: list[dict[str, Any]], folder: Path, limit_s: int) -> list[dict[str, Any]]:
    """Run a program of `verl_environment` on requests; return its findings, one a request."""
    file = folder / "requests.json"
    file.write_text(json.dumps(requests), encoding="utf-8")
    done = subprocess.run(
        [str(python), str(HERE / program), str(file), str(folder / "model")],
        env=os.environ | {"RPEGC_WORK_DIR": "/work folder", "RPEGC_RUN_DIR": "/run", "RPEGC_LAUNCH_DIR": "/launch"},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    if done.returncode:
        pytest.fail(f"{program} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    findings: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return findings
