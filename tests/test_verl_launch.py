"""The launch folder: scripts that a linter accepts, that start, wait, train, stop, and pass the exit status on."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_plans import colocated_grpo, lora, one_step_off, ppo

from backends import backend
from backends.site import load_site, site_names
from backends.verl.launch import object_store_bytes, slurm_time
from backends.verl.request import request_of
from rpegc.emit import write_files
from rpegc.errors import InputError
from rpegc.plan import MemoryPhase, Plan

PLANS: dict[str, Plan] = {"grpo": colocated_grpo(), "ppo": ppo(), "one-step-off": one_step_off(), "lora": lora()}
BIN = Path(sys.executable).parent


def emitted(plan: Plan, folder: Path, site: str = "alps") -> Path:
    """Write a plan's files; return the launch folder."""
    write_files(backend("verl").emit(plan, site), folder)
    return folder / "launch"


@pytest.mark.parametrize("name", PLANS)
def test_files_are_as_reviewed(name: str, golden: Callable[[str, str], None]) -> None:
    files = backend("verl").emit(PLANS[name])
    golden(f"verl/{name}.overrides.txt", files["launch/verl_overrides.txt"].content.decode())
    golden(f"verl/{name}.submit.sbatch", files["launch/submit.sbatch"].content.decode())


def test_shared_files_are_as_reviewed(golden: Callable[[str, str], None]) -> None:
    files = backend("verl").emit(PLANS["lora"], "generic")
    for name in ("run_local.sh", "ray_node.sh", "train.sh", "preflight.sh", "environment.sh", "README.md"):
        golden(f"verl/shared.{name}", files[f"launch/{name}"].content.decode())
    golden("verl/alps.environment.sh", backend("verl").emit(PLANS["lora"])["launch/environment.sh"].content.decode())


@pytest.mark.parametrize("site", site_names())
@pytest.mark.parametrize("name", ["grpo", "lora"])
def test_scripts_are_clean_for_bash_and_shellcheck(name: str, site: str, tmp_path: Path) -> None:
    launch = emitted(PLANS[name], tmp_path, site)
    scripts = [str(path) for path in sorted(launch.iterdir()) if path.suffix in (".sh", ".sbatch")]
    assert len(scripts) >= 5
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    found = subprocess.run([str(BIN / "shellcheck"), *scripts], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_python_files_are_clean(tmp_path: Path) -> None:
    launch = emitted(PLANS["grpo"], tmp_path)
    programs = [str(path) for path in sorted(launch.glob("*.py"))]
    assert len(programs) == 3
    checked = subprocess.run(
        [str(BIN / "ruff"), "check", "--isolated", "--line-length=120", "--select=E,F,B,I", *programs],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


def test_scripts_are_executable_and_data_is_not(tmp_path: Path) -> None:
    launch = emitted(PLANS["lora"], tmp_path)
    assert (launch / "submit.sbatch").stat().st_mode & stat.S_IXUSR
    assert not (launch / "verl_overrides.txt").stat().st_mode & stat.S_IXUSR


def test_emission_is_repeatable() -> None:
    assert backend("verl").emit(ppo()) == backend("verl").emit(ppo())


def test_only_a_single_node_runs_without_slurm() -> None:
    assert "launch/run_local.sh" in backend("verl").emit(PLANS["lora"])
    assert "launch/run_local.sh" not in backend("verl").emit(PLANS["grpo"])


def test_time_limit_follows_the_plan_and_the_site() -> None:
    def script(plan: Plan, site: str) -> str:
        return backend("verl").emit(plan, site)["launch/submit.sbatch"].content.decode()

    # 500 steps of 130 s (upper end of the interval), 10 % slack, half an hour to start: 73300 s.
    assert "#SBATCH --time=20:22:00\n" in script(PLANS["grpo"], "generic")
    long = colocated_grpo(**{"training.total_steps": 5000, "training.save_every": None})
    assert "#SBATCH --time=24:00:00\n" in script(long, "generic")
    assert "#SBATCH --time=12:00:00\n" in script(long, "alps")
    assert "set `training.save_every`" in backend("verl").emit(long)["launch/README.md"].content.decode()
    assert slurm_time(61) == "00:02:00"


def test_network_variables_that_a_container_set_stay(tmp_path: Path) -> None:
    """CSCS's hook knows its containers better than a profile; a plugin name from outside never survives."""
    launch = emitted(PLANS["grpo"], tmp_path, "alps")
    given = {"NCCL_CROSS_NIC": "0", "NCCL_NET_PLUGIN": "ofi", "RPEGC_RUN_DIR": "/run", "PATH": os.environ["PATH"]}
    words = '. "$0" && echo "$NCCL_NET|$NCCL_CROSS_NIC|$NCCL_PROTO|${NCCL_NET_PLUGIN-unset}"'
    done = subprocess.run(["bash", "-c", words, f"{launch}/environment.sh"], env=given, capture_output=True, text=True)
    assert done.stdout == "AWS Libfabric|0|^LL128|unset\n", done.stderr


def test_object_store_takes_what_the_plan_sets_aside() -> None:
    plan = colocated_grpo()
    phase = MemoryPhase("all", "generate", {}, 0.0, 1.0, 1.0, {"ray_object_store": 9e9}, 9e9, 4e11)
    planned = Plan(**{name: getattr(plan, name) for name in plan.__dataclass_fields__} | {"memory": (phase,)})
    assert object_store_bytes(planned, request_of(planned)) == 9_000_000_000
    # 8192 sequences of at most 17408 tokens, 64 bytes a token
    assert object_store_bytes(plan, request_of(plan)) == 8192 * 17408 * 64


def test_alps_uses_its_network_and_leaves_no_foreign_plugin() -> None:
    site = load_site("alps")
    assert dict(site.variables)["NCCL_NET"] == "AWS Libfabric"
    text = backend("verl").emit(PLANS["grpo"], "alps")["launch/environment.sh"].content.decode()
    assert "export NCCL_NET=${NCCL_NET:-'AWS Libfabric'}\n" in text
    assert "unset NCCL_NET_PLUGIN\n" in text
    assert "NCCL" not in backend("verl").emit(PLANS["grpo"], "generic")["launch/environment.sh"].content.decode()


HOSTILE_NAMES = ["$(touch HACKED)", "a; touch HACKED", "`touch HACKED`", '" && touch HACKED #', "-rf", "模型 ü"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_name_stays_a_name(name: str, tmp_path: Path) -> None:
    launch = emitted(colocated_grpo(name=name), tmp_path)
    script = (launch / "submit.sbatch").read_text()
    job = next(line for line in script.splitlines() if line.startswith("#SBATCH --job-name=")).split("=", 1)[1]
    assert job.replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert "touch HACKED" not in script
    subprocess.run(["bash", "-n", str(launch / "submit.sbatch")], check=True)


def test_a_name_with_a_line_break_cannot_add_a_line() -> None:
    files = backend("verl").emit(colocated_grpo(name="x\n#SBATCH --nodes=100"))
    assert "\n#SBATCH --nodes=100" not in files["launch/submit.sbatch"].content.decode()
    with pytest.raises(InputError, match="control character"):
        backend("verl").emit(colocated_grpo(**{"data.train": "/a\nb"}))


STUBS = {
    "scontrol": """case "$*" in
        *hostnames*) for i in $(seq 1 "${STUB_HOSTS:-4}"); do printf 'nid00%d\\n' "$i"; done ;;
        *) printf '   Command=%s\\n' "$STUB_SCRIPT" ;;
    esac""",
    "srun": """echo "srun $*" >>"$STUB_LOG"
    while [[ ${1:-} == --* ]]; do shift; done
    exec "$@\"""",
    "hostname": "echo 'fe80::1 10.0.0.7'",
    "ray": """echo "ray $*" >>"$STUB_LOG"
    [[ $1 == start ]] && exec sleep 50
    exit 0""",
    "nvidia-smi": "echo 'GPU 0: stub'",
    "python3": """case "$*" in
        *preflight.py) exit "${STUB_PREFLIGHT:-0}" ;;
        *wait_for_gpus.py*) echo "wait $2 $3" >>"$STUB_LOG"; exit "${STUB_WAIT:-0}" ;;
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
        stubs = {"STUB_LOG": str(self.log), "STUB_SCRIPT": str(self.launch / script), "RPEGC_RAY_DIR": str(self.bin)}
        path = {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/")}
        return subprocess.run(
            ["bash", str(copy), *arguments],
            env=path | slurm | stubs | variables,
            cwd=self.work,
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


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Four nodes, and GRPO with a hostile data path to launch on them."""
    plan = colocated_grpo(**{"data.train": '/da ta/it\'s "$(id)" `id`.parquet'})
    return Cluster(tmp_path, emitted(plan, tmp_path / "out put"))


def test_job_starts_head_and_workers_waits_trains_and_stops(cluster: Cluster) -> None:
    done = cluster.run("submit.sbatch", SLURM_GPUS_PER_NODE="gh200:4")
    assert done.returncode == 0, done.stderr
    ray = [call for call in cluster.calls if call.startswith("ray ")]
    assert any("start --head --node-ip-address=10.0.0.7 --port=6379" in call for call in ray)
    assert any("start --address=10.0.0.7:6379" in call and "--num-gpus=4" in call for call in ray)
    assert ray[-1] == "ray stop"
    assert "wait 16 600" in cluster.calls
    workers = next(call for call in cluster.calls if "ray_node.sh worker" in call)
    assert "--nodelist=nid002,nid003,nid004" in workers
    driver = next(call for call in cluster.calls if "train.sh" in call)
    assert "--overlap" in driver
    assert "--nodelist=nid001 " in driver
    assert str(cluster.work) in cluster.calls


def test_driver_gets_each_line_as_one_argument(cluster: Cluster) -> None:
    cluster.run("submit.sbatch")
    lines = (cluster.launch / "verl_overrides.txt").read_text().splitlines()
    assert cluster.trained_with == ["-m", "verl.trainer.main_ppo", *lines]
    assert any("$(id)" in line for line in lines)


@pytest.mark.parametrize(
    ("variables", "status"), [({"STUB_TRAIN": "7"}, 7), ({"STUB_WAIT": "1"}, 1)], ids=["training", "waiting"]
)
def test_job_ends_with_the_status_of_what_failed_and_stops_ray(
    cluster: Cluster, variables: dict[str, str], status: int
) -> None:
    assert cluster.run("submit.sbatch", **variables).returncode == status
    assert [call for call in cluster.calls if call.startswith("ray ")][-1] == "ray stop"


def test_job_that_fails_preflight_starts_nothing(cluster: Cluster) -> None:
    assert cluster.run("submit.sbatch", STUB_PREFLIGHT="1").returncode == 1
    assert not [call for call in cluster.calls if call.startswith("ray ")]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"STUB_HOSTS": "3"}, "the plan needs 4 nodes, the job has 3"),
        ({"SLURM_GPUS_PER_NODE": "gh200:2"}, "the plan needs 4 GPUs a node, the job has gh200:2"),
    ],
)
def test_job_of_another_size_is_refused(cluster: Cluster, variables: dict[str, str], words: str) -> None:
    done = cluster.run("submit.sbatch", **variables)
    assert done.returncode == 1
    assert words in done.stderr


def test_container_is_entered_by_every_step_of_the_plan(cluster: Cluster) -> None:
    cluster.run("submit.sbatch", RPEGC_ENVIRONMENT="my verl.toml")
    steps = [call for call in cluster.calls if call.startswith("srun ") and "hostname" not in call]
    assert steps
    assert all("--environment=my verl.toml" in step for step in steps)


def test_one_node_runs_without_slurm(tmp_path: Path) -> None:
    local = Cluster(tmp_path, emitted(lora(), tmp_path / "out"))
    done = local.run("run_local.sh", "trainer.val_only=True", STUB_TRAIN="5")
    assert done.returncode == 5
    assert local.trained_with[-1] == "trainer.val_only=True"
    assert not [call for call in local.calls if call.startswith("srun")]
    assert any("start --head --node-ip-address=127.0.0.1" in call for call in local.calls)
    assert "ray stop" not in local.calls  # it would end another job's Ray on this node


def preflight(launch: Path, folder: Path, installed: dict[str, str], **variables: str) -> list[str]:
    """Run the emitted checks with only these packages installed; return the reasons not to start."""
    site = folder / "site"
    for package, version in installed.items():
        info = site / f"{package}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (site / package.lower()).mkdir(exist_ok=True)
    nvidia = folder / "nvidia-smi"
    nvidia.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "GPU $i: NVIDIA GH200 120GB"; done\n')
    nvidia.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(site), "RPEGC_WORK_DIR": str(folder)}
    store = {"RPEGC_OBJECT_STORE_BYTES": "1"}
    done = subprocess.run(
        [sys.executable, "-S", str(launch / "preflight.py")],
        env=environment | store | variables,
        capture_output=True,
        text=True,
        timeout=30,
    )
    reasons = done.stderr.splitlines()
    assert done.returncode == bool(reasons), done.stderr
    return [reason.removeprefix("preflight: ") for reason in reasons]


INSTALLED = {"verl": "0.9.1", "vllm": "0.24.0", "ray": "2.60.0", "TransferQueue": "0.1.11", "tensordict": "0.10.0"}


def local_plan(folder: Path) -> Plan:
    """Return a plan whose inputs exist below a folder."""
    for name in ("weights", "rewards"):
        (folder / name).mkdir()
    (folder / "train.jsonl").write_text("{}\n")
    (folder / "rewards" / "math.py").write_text("def score(data_source, solution_str, ground_truth):\n    return 1.0\n")
    models = {role: {"config": "x", "weights": "./weights", "tokenizer": None} for role in ("actor", "reference")}
    return colocated_grpo(models=models, data={"train": "train.jsonl", "prompt_key": "prompt", "answer_key": "answer"})


def test_preflight_lets_a_complete_node_start(tmp_path: Path) -> None:
    launch = emitted(local_plan(tmp_path), tmp_path / "out", "generic")
    assert preflight(launch, tmp_path, INSTALLED) == []


def test_preflight_names_everything_that_is_missing(tmp_path: Path) -> None:
    plan = colocated_grpo(data=None, **{"training.learning_rate": None})
    wrong = INSTALLED | {"verl": "0.9.0", "ray": "2.9.0"}
    del wrong["vllm"]
    reasons = preflight(emitted(plan, tmp_path / "out"), tmp_path, wrong, NCCL_NET="Socket")
    assert "data.train is not set: add it to the pipeline and compile again" in reasons
    assert "training.learning_rate is not set: add it to the pipeline and compile again" in reasons
    assert "verl is 0.9.0, these files were written for 0.9.1" in reasons
    assert "ray is 2.9.0, too old: >=2.41" in reasons
    assert "the package vllm is not installed" in reasons
    assert "models.actor.weights: /models/Qwen3-8B does not exist" in reasons
    assert "NCCL_NET must be 'AWS Libfabric', it is 'Socket'" in reasons


def test_preflight_looks_for_the_reward_function_and_enough_gpus(tmp_path: Path) -> None:
    launch = emitted(local_plan(tmp_path), tmp_path / "out", "generic")
    (tmp_path / "rewards" / "math.py").write_text("def scores():\n    pass\n")
    facts = json.loads((launch / "preflight.json").read_text())
    (launch / "preflight.json").write_text(json.dumps(facts | {"gpus_per_node": 8}))
    reasons = preflight(launch, tmp_path, INSTALLED)
    assert "rewards/math.py defines no function 'score'; it defines scores" in reasons
    assert "the node shows 4 GPUs, the plan uses 8" in reasons


def test_preflight_of_one_step_off_wants_the_checkpoint_engine(tmp_path: Path) -> None:
    reasons = preflight(emitted(one_step_off(), tmp_path / "out"), tmp_path, INSTALLED)
    assert "the Python module cupy cannot be found" in reasons


@pytest.mark.parametrize(("wanted", "limit_s", "status"), [("4", "20", 0), ("8", "0.3", 1)])
def test_wait_ends_with_the_gpus_or_with_the_time(wanted: str, limit_s: str, status: int, tmp_path: Path) -> None:
    launch = emitted(lora(), tmp_path)
    (tmp_path / "ray.py").write_text("def init(**o): pass\ndef cluster_resources(): return {'GPU': 4.0}\n")
    done = subprocess.run(
        [sys.executable, str(launch / "wait_for_gpus.py"), wanted, limit_s],
        env={"PYTHONPATH": str(tmp_path), "RAY_ADDRESS": "10.0.0.7:6379", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == status
    assert ("of 8 GPUs" in done.stderr) == (status == 1)
