"""Launch folders on disk, and stand-ins for the commands that their scripts call."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from backends import backend
from rpegc.emit import write_files
from rpegc.plan import Plan


def emitted(plan: Plan, folder: Path, site: str = "alps") -> Path:
    """Write a plan's files; return the launch folder."""
    write_files(backend("verl").emit(plan, site), folder)
    return folder / "launch"


STUBS = {
    "scontrol": """case "$*" in
        *hostnames*) for i in $(seq 1 "${STUB_HOSTS:-4}"); do printf 'nid00%d\\n' "$i"; done ;;
        *) printf '   Command=%s\\n' "$STUB_SCRIPT${STUB_ARGUMENTS:+ $STUB_ARGUMENTS}" ;;
    esac""",
    "srun": """echo "srun $*" >>"$STUB_LOG"
    while [[ ${1:-} == --* ]]; do shift; done
    exec "$@\"""",
    "hostname": """case $1 in
        -I) echo "${STUB_ADDRESSES-127.0.0.2 fe80::1 10.0.0.7 192.168.0.9}" ;;
        *) echo "127.0.1.1${STUB_NAMED:+ $STUB_NAMED}" ;;
    esac""",
    "ip": """[[ -n ${STUB_ROUTE-} ]] || exit 2
    echo "192.0.2.1 via 10.1.0.1 dev hsn0 src $STUB_ROUTE uid 0"
    """,
    "nproc": "echo 64",
    "ray": """echo "ray $*" >>"$STUB_LOG"
    [[ $1 == start && -n ${STUB_RAY-} ]] && exit "$STUB_RAY"
    [[ $1 == start ]] && exec sleep 50
    exit 0""",
    "nvidia-smi": "echo 'GPU 0: stub'",
    "python3": """case "$*" in
        *preflight.py*) exit "${STUB_PREFLIGHT:-0}" ;;
        *wait_for_gpus.py*) echo "wait $2 $3" >>"$STUB_LOG"
            [[ -z ${STUB_WAIT_S-} ]] || exec sleep "$STUB_WAIT_S"
            for _ in {1..20}; do # Ray starts beside it: wait for the calls of head and workers, if there are workers
                grep -qs '^ray start --head' "$STUB_LOG" && grep -qs '^ray start --address' "$STUB_LOG" && break
                sleep 0.05
            done
            exit "${STUB_WAIT:-0}" ;;
        *) printf '%s\\0' "$@" >"$STUB_LOG.train"; pwd >>"$STUB_LOG"; exit "${STUB_TRAIN:-0}" ;;
    esac""",
}


class Cluster:
    """Stand-ins for SLURM, Ray and Python that log how they are called."""

    def __init__(self, folder: Path, launch: Path) -> None:
        self.bin, self.log, self.launch, self.work = folder / "bin", folder / "log", launch, folder / "my work"
        self.bin.mkdir()
        self.work.mkdir()
        for name, body in STUBS.items():
            stub = self.bin / name
            stub.write_text(f"#!/bin/bash\n{body}\n")
            stub.chmod(0o755)

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run an emitted script as SLURM would: a copy of it, elsewhere, in the folder of submission."""
        copy = self.bin / "slurm_script" if script.endswith(".sbatch") else self.launch / script
        if copy != self.launch / script:
            shutil.copy(self.launch / script, copy)
        slurm = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "nid[001-004]", "SLURM_SUBMIT_DIR": str(self.work)}
        slurm["SLURM_CPUS_ON_NODE"] = "288"
        stubs = {"STUB_LOG": str(self.log), "STUB_SCRIPT": str(self.launch / script), "RPEGC_RAY_DIR": str(self.bin)}
        path = {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/")}
        return subprocess.run(
            ["bash", str(copy), *arguments],
            env=path | slurm | stubs | variables,
            cwd=variables.get("SLURM_SUBMIT_DIR", self.work),
            capture_output=True,
            text=True,
            timeout=30,
        )

    @property
    def calls(self) -> list[str]:
        """What was called so far."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def trained_with(self) -> list[str]:
        """The arguments that the driver got."""
        return Path(f"{self.log}.train").read_text().split("\0")[:-1]
