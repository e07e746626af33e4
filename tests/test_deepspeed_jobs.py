"""The emitted scripts for DeepSpeed with stand-ins for SLURM, vLLM and Python: who starts where, and what ends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from deepspeed_plans import adapters, colocated, served, served_on_one_node

from backends import backend
from rpegc.emit import write_files
from rpegc.errors import InputError
from rpegc.plan import Plan

HOSTILE = "a $(touch HACKED) `touch HACKED` ;touch HACKED; & 'q' \"d\" ü 模 * # 100%"
STUBS = {
    "scontrol": """case "$*" in
        *hostnames*) printf 'nid%03d\\n' $(seq 1 "$STUB_HOSTS") ;;
        *) printf '   Command=%s\\n' "$STUB_SCRIPT" ;;
    esac""",
    "srun": """echo "srun $*" >>"$STUB_LOG"
    while [[ ${1:-} == --* ]]; do shift; done
    exec "$@\"""",
    "ip": "echo '192.0.2.1 via 10.1.0.1 dev hsn0 src 10.1.0.7 uid 0'",
    "vllm": """printf '%s\\n' "vllm $*" "visible $CUDA_VISIBLE_DEVICES" >>"$STUB_LOG"
    exec sleep "${STUB_SERVES_S:-60}\"""",
    "python3": """case "$*" in
        *preflight.py*) exit "${STUB_PREFLIGHT:-0}" ;;
        *start_ranks.py*) printf '%s\\0' "$@" >"$STUB_LOG.train"; echo "server $RPEGC_VLLM_SERVER_URL" >>"$STUB_LOG"
            [[ -z ${STUB_TRAINS_S-} ]] || exec sleep "$STUB_TRAINS_S"
            exit "${STUB_TRAIN:-0}" ;;
    esac""",
}


class Node:
    """Stand-ins that log how they are called."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.bin, self.log, self.work = folder / "bin", folder / "log", folder / HOSTILE
        self.launch = self.work / "out" / "launch"
        self.nodes = plan.devices.nodes
        for path in (self.bin, self.work):
            path.mkdir()
        write_files(backend("deepspeed").emit(plan, "alps"), self.work / "out")
        for name, body in STUBS.items():
            (self.bin / name).write_text(f"#!/bin/bash\n{body}\n")
            (self.bin / name).chmod(0o755)

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        copy = self.bin / "slurm_script" if script.endswith(".sbatch") else self.launch / script
        if copy != self.launch / script:
            shutil.copy(self.launch / script, copy)
        slurm = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "nid[001-004]", "SLURM_SUBMIT_DIR": str(self.work)}
        stubs = {"STUB_LOG": str(self.log), "STUB_SCRIPT": str(self.launch / script), "STUB_HOSTS": str(self.nodes)}
        own = {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.work), "SLURM_CPUS_ON_NODE": "288"}
        return subprocess.run(
            ["bash", str(copy), *arguments],
            env=own | slurm | stubs | variables,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=30,
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def trained_with(self) -> list[str]:
        return Path(f"{self.log}.train").read_text().split("\0")[:-1]

    @property
    def hacked(self) -> bool:
        return any(path.name.startswith("HACKED") for path in self.work.parent.rglob("*"))


def test_training_starts_on_every_node_with_the_users_settings(tmp_path: Path) -> None:
    node = Node(tmp_path, colocated(4))
    done = node.run("submit.sbatch", f"run_name={HOSTILE}")
    assert done.returncode == 0, done.stderr
    words = node.trained_with
    assert words[0] == str(node.launch / "start_ranks.py")
    assert {"--nnodes=4", "--nproc-per-node=4", "--master-addr=10.1.0.7", "--master-port=23456"} <= set(words)
    assert words[-2:] == [str(node.launch / "train_grpo.py"), f"run_name={HOSTILE}"]
    start = next(call for call in node.calls if call.endswith(f"run.sh train run_name={HOSTILE}"))
    assert "--nodes=4 --ntasks=4 --nodelist=nid001,nid002,nid003,nid004" in start
    assert "--kill-on-bad-exit=1" in start
    assert not node.hacked


@pytest.mark.parametrize("status", [0, 7])
def test_the_job_ends_with_the_status_of_the_training(tmp_path: Path, status: int) -> None:
    for plan in (colocated(4), served(4)):
        folder = tmp_path / plan.graph.mode
        folder.mkdir()
        assert Node(folder, plan).run("submit.sbatch", STUB_TRAIN=str(status)).returncode == status


def test_the_server_runs_on_its_node_and_the_trainers_know_it(tmp_path: Path) -> None:
    node = Node(tmp_path, served(4))
    done = node.run("submit.sbatch", STUB_TRAINS_S="1")
    assert done.returncode == 0, done.stderr
    serve = next(call for call in node.calls if call.endswith("run.sh serve"))
    assert "--nodelist=nid004" in serve
    train = next(call for call in node.calls if call.endswith("run.sh train"))
    assert "--nodelist=nid001,nid002,nid003" in train
    assert "server http://10.1.0.7:33456" in node.calls
    vllm = next(call for call in node.calls if call.startswith("vllm serve"))
    assert vllm.startswith("vllm serve /models/Qwen3-8B --tensor-parallel-size=4")
    assert vllm.endswith("--host=10.1.0.7 --port=33456")


def test_a_server_that_ends_fails_the_job_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, served(4))
    done = node.run("submit.sbatch", STUB_SERVES_S="0", STUB_TRAINS_S="25")
    assert done.returncode == 1
    assert "server ended (status 0) before the training" in done.stderr


def test_a_finding_of_preflight_ends_the_job_before_anything_starts(tmp_path: Path) -> None:
    node = Node(tmp_path, colocated(4))
    assert node.run("submit.sbatch", STUB_PREFLIGHT="1").returncode == 1
    assert not Path(f"{node.log}.train").exists()


def test_one_node_without_slurm_splits_its_gpus(tmp_path: Path) -> None:
    node = Node(tmp_path, served_on_one_node())
    done = node.run("run_local.sh", "logging_steps=2", STUB_TRAINS_S="1")
    assert done.returncode == 0, done.stderr
    assert "visible 2,3" in node.calls
    assert "server http://127.0.0.1:8000" in node.calls
    assert node.trained_with[-1] == "logging_steps=2"
    assert not node.hacked


def test_a_run_with_checkpoints_is_put_back_into_the_queue_and_only_that(tmp_path: Path) -> None:
    for every, words in ((20, "#SBATCH --requeue\n#SBATCH --open-mode=append\n"), (None, "#SBATCH --no-requeue\n")):
        files = backend("deepspeed").emit(colocated(**{"training.save_every": every}), "alps")
        assert words in files["launch/submit.sbatch"].content.decode()


def test_checkpoints_never_go_into_the_compiled_folder(tmp_path: Path) -> None:
    node = Node(tmp_path, colocated(4))
    done = node.run("submit.sbatch", RPEGC_RUN_DIR="out/runs")
    assert done.returncode == 1
    assert "inside the compiled folder" in done.stderr


# Texts of the user, wherever they land.


def test_hostile_texts_are_carried_as_they_are() -> None:
    weights, data = f"/models/{HOSTILE}", f"/data/{HOSTILE}.parquet"
    plan = served(**{"data.train": data, "reward": {"function": f"{HOSTILE}.py:score"}})
    for model in plan.pipeline["models"].values():
        model["weights"] = weights
    files = backend("deepspeed").emit(plan, "alps")
    settings = json.loads(files["launch/settings.json"].content)
    assert settings["model"]["weights"] == weights
    assert settings["data"]["train"] == data
    assert settings["reward"]["path"] == f"{HOSTILE}.py"
    assert files["launch/vllm_server.txt"].content.decode().splitlines()[0] == weights
    for name, file in files.items():  # no script holds a text of the user's but the plan's slug
        if name.endswith((".sh", ".sbatch", ".py")):
            assert "HACKED" not in file.content.decode(), name


def test_a_leading_dash_is_no_flag_of_the_server() -> None:
    plan = served()
    for model in plan.pipeline["models"].values():
        model["weights"] = "-rf"
    assert backend("deepspeed").emit(plan, "alps")["launch/vllm_server.txt"].content.startswith(b"./-rf\n")


@pytest.mark.parametrize("plan", [colocated, adapters])
@pytest.mark.parametrize("text", ["a\nb", "a\x00b", "a\u2028b"])
def test_texts_that_end_a_line_are_refused(plan: type, text: str) -> None:
    with pytest.raises(InputError, match="control character"):
        backend("deepspeed").emit(plan(**{"data.train": text}), "alps")
