"""A real SLURM on 127.0.0.1 for proofs of the emitted job scripts; every wait is bounded."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

HERE = Path(__file__).resolve().parent / "slurm"
STAND_INS = HERE / "stand_ins"

INSTALL_AND_START_LIMIT_S = 600
STOP_LIMIT_S = 60
COMMAND_LIMIT_S = 30
SETTLE_LIMIT_S = 15
MOST_JOBS = 1000

DAEMONS = ("munged", "slurmctld", "slurmscriptd", "slurmd")


@dataclass(frozen=True)
class Job:
    """A job that ended: its exit status, its number, and what its processes did, in order of time."""

    status: int
    number: int
    log: str
    calls: tuple[dict[str, Any], ...]

    def of(self, program: str, *first: str) -> list[dict[str, Any]]:
        """Return the calls of a program whose arguments start like this."""
        return [
            call
            for call in self.calls
            if call["program"] == program and tuple(call.get("arguments", ())[: len(first)]) == first
        ]


class Cluster:
    """The running SLURM, and jobs on it whose Ray, verl and nvidia-smi are stand-ins that note their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "PATH": f"{STAND_INS / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def command(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a SLURM command."""
        return subprocess.run(
            words, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_LIMIT_S
        )

    def test_only(self, script: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Ask whether SLURM would ever start a script; nothing runs."""
        return self.command("sbatch", "--test-only", *options, str(script), cwd=self.folder)

    def submit(self, script: Path, work: Path, limit_s: float, *arguments: str, **planted: str) -> Job:
        """Run a script to its end from a folder; the test fails, and the job is cancelled, after `limit_s` seconds."""
        with self.start(script, work, *arguments, **planted) as submitted:
            return self.end(submitted, work, limit_s)

    def start(self, script: Path, work: Path, *arguments: str, **planted: str) -> subprocess.Popen[str]:
        """Submit a script from a folder; return the `sbatch` that waits for its end."""
        calls = calls_folder(work)
        shutil.rmtree(calls, ignore_errors=True)
        calls.mkdir()
        packages = installed_packages(script.parent, calls / "packages")
        environment = self.environment | {
            "PYTHONPATH": f"{STAND_INS / 'site'}:{packages}",
            "RPEGC_PROOF_FOLDER": str(calls),
            "RPEGC_OBJECT_STORE_BYTES": "1000000",
        }
        return subprocess.Popen(
            ["sbatch", "--wait", "--parsable", str(script), *arguments],
            env=environment | planted,
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, submitted: subprocess.Popen[str], work: Path, limit_s: float) -> Job:
        """Wait for a submitted job; return how it ended."""
        try:
            output, errors = submitted.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.give_up(f"the job did not end in {limit_s} s", work)
        if not output.strip().isdigit():
            pytest.fail(f"sbatch refused the script: {errors}")
        number = int(output)
        self.wait_until(lambda: not self.command("squeue", "--noheader").stdout, 20, work)
        return Job(submitted.returncode, number, logs(work), calls_of(work))

    def wait_until(self, reached: Callable[[], bool], limit_s: float, work: Path) -> None:
        """Poll until something holds; the test fails after `limit_s` seconds."""
        end = time.monotonic() + limit_s
        while not reached():
            if time.monotonic() > end:
                self.give_up(f"it did not come in {limit_s} s", work)
            time.sleep(0.2)

    def give_up(self, reason: str, work: Path) -> NoReturn:
        """Cancel all jobs, so that whoever waits for one goes on, and fail with the log."""
        self.command("scancel", "--signal=KILL", "--full", "--user=root")
        self.command("scancel", "--user=root")
        pytest.fail(f"{reason}:\n{logs(work)}\n{calls_of(work)}")

    def left(self) -> list[str]:
        """Return the command lines of this cluster's processes."""
        found = subprocess.run(
            ["bash", str(HERE / "cluster.sh"), "left", str(self.folder)],
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
        )
        lines = []
        for number in found.stdout.split():
            try:
                words = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                lines.append(f"{Path(f'/proc/{number}/comm').read_text().strip()}: {words}")
            except OSError:  # it has ended since
                continue
        return lines

    def jobs_left(self) -> list[str]:
        """Return the command lines of what is not a daemon; step daemons of a job end a moment after it."""
        end = time.monotonic() + SETTLE_LIMIT_S
        while True:
            found = [line for line in self.left() if line.split(":")[0] not in DAEMONS]
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.2)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a SLURM in a temporary folder; stop it, and fail if it leaves a process behind."""
    folder = Path(tempfile.mkdtemp(prefix="rpegc-slurm-", dir="/tmp"))
    folder.chmod(0o755)  # munged refuses a socket that others cannot reach
    running = Cluster(folder)
    try:
        started = control("start", folder, INSTALL_AND_START_LIMIT_S)
        if started.returncode:
            pytest.fail(f"SLURM does not start:\n{started.stderr}\n{started.stdout}")
        yield running
    finally:
        stopped = control("stop", folder, STOP_LIMIT_S)
        left = running.left()
        remove_ray_folders(folder)
        shutil.rmtree(folder, ignore_errors=True)
    assert stopped.returncode == 0, stopped.stderr
    assert left == []


def remove_ray_folders(folder: Path) -> None:
    """Remove what jobs left in the nodes' own folder, here this host's /tmp: named after this cluster's job ids."""
    configuration = folder / "slurm.conf"
    first = re.search(r"(?m)^FirstJobId=(\d+)$", configuration.read_text()) if configuration.exists() else None
    if not first:
        return  # nothing has started
    for number in range(int(first[1]), int(first[1]) + MOST_JOBS):
        shutil.rmtree(f"/tmp/ray-{number}", ignore_errors=True)


def control(part: str, folder: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a part of cluster.sh; daemons keep what they inherit open, so that its output goes to a file."""
    file = folder / f"{part}.log"
    with file.open("w") as output:
        done = subprocess.run(
            ["bash", str(HERE / "cluster.sh"), part, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
        )
    return subprocess.CompletedProcess(done.args, done.returncode, "", file.read_text())


def calls_folder(work: Path) -> Path:
    """Return where stand-ins note their calls: beside the folder of submission."""
    return work.parent / "calls"


def calls_of(work: Path) -> tuple[dict[str, Any], ...]:
    """Return what the stand-ins noted."""
    file = calls_folder(work) / "calls.jsonl"
    return tuple(json.loads(line) for line in file.read_text().splitlines()) if file.exists() else ()


def logs(work: Path) -> str:
    """Return the job logs in a folder of submission."""
    return "".join(path.read_text(errors="replace") for path in sorted(work.glob("*.log")))


def installed_packages(launch: Path, folder: Path) -> Path:
    """Pose as an environment that has every package and module that preflight wants."""
    wanted = json.loads((launch / "preflight.json").read_text())
    for package, rule in wanted["versions"].items():
        version = rule.lstrip("=>") if rule.lstrip("=>") != "0" else "1.0"
        information = folder / f"{package}-{version}.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    for module in wanted["modules"]:
        (folder / module).mkdir(parents=True)
    return folder
