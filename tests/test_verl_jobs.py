"""The job scripts, run on stand-ins: they start, wait, train, stop, pass the exit status on, and refuse early."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from verl_launches import Cluster, emitted
from verl_plans import colocated_grpo, lora, one_step_off

PLANS = {"grpo": colocated_grpo(), "lora": lora(), "one-step-off": one_step_off()}


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


@pytest.mark.parametrize("status", ["3", "0"])
@pytest.mark.parametrize("script", ["submit.sbatch", "run_local.sh"])
def test_nobody_waits_for_the_gpus_of_a_ray_that_has_ended(script: str, status: str, tmp_path: Path) -> None:
    """The wait of ten minutes ends with Ray, whatever the status that Ray ends with."""
    slurm = Cluster(tmp_path, emitted(lora(), tmp_path / "out"))
    variables = {"STUB_HOSTS": "1", "SLURM_CPUS_ON_NODE": "288", "STUB_RAY": status, "STUB_WAIT_S": "25"}
    done = slurm.run(script, **variables)
    assert done.returncode == 1
    assert re.search("Ray ended (on a node )?before all 4 GPUs were there", done.stderr), done.stderr
    assert not [call for call in slurm.calls if "train.sh" in call]


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
    steps = [call for call in cluster.calls if call.startswith("srun ") and "ray_node.sh address" not in call]
    assert steps
    assert all("--environment=my verl.toml" in step for step in steps)


def test_pyxis_gets_its_image_and_its_mounts(tmp_path: Path) -> None:
    pyxis = Cluster(tmp_path, emitted(colocated_grpo(), tmp_path / "out", "generic"))
    mounts = "/scratch:/scratch,/my data:/my data"
    assert pyxis.run("submit.sbatch", RPEGC_CONTAINER="verl.sqsh", RPEGC_CONTAINER_MOUNTS=mounts).returncode == 0
    driver = next(call for call in pyxis.calls if "train.sh" in call)
    assert f"--container-image=verl.sqsh --container-mounts={mounts} " in driver


def test_every_step_gets_the_cpus_of_the_job_and_so_does_ray(cluster: Cluster) -> None:
    """SLURM gives a step one CPU unless it asks for more; Ray then takes what the job has, not what it sees."""
    assert cluster.run("submit.sbatch", SLURM_CPUS_PER_TASK="72").returncode == 0
    steps = [call for call in cluster.calls if call.startswith("srun ")]
    assert len(steps) >= 6
    assert all("--cpus-per-task=72 --cpu-bind=none" in step for step in steps)
    starts = [call for call in cluster.calls if call.startswith("ray start")]
    assert len(starts) == 2
    assert all("--num-cpus=72 " in start for start in starts)


@pytest.mark.parametrize(
    ("plan", "needed"), [("grpo", 12 + 2 + 1 + 1), ("lora", 12 + 8 + 1 + 1), ("one-step-off", 12 + 10 + 1)]
)
def test_a_job_with_fewer_cpus_than_verl_reserves_ends_at_once(plan: str, needed: int, tmp_path: Path) -> None:
    """Three CPUs for each GPU, and what the data queue or the driver holds; else Ray would wait for ever."""
    slurm = Cluster(tmp_path, emitted(PLANS[plan], tmp_path / "out"))
    hosts = str(PLANS[plan].devices.nodes)
    done = slurm.run("submit.sbatch", SLURM_CPUS_ON_NODE=str(needed - 1), STUB_HOSTS=hosts)
    assert done.returncode == 1
    assert f"verl's processes ask for {needed} CPUs a node (3 for each GPU" in done.stderr
    assert not [call for call in slurm.calls if call.startswith("srun")]
    assert slurm.run("submit.sbatch", SLURM_CPUS_ON_NODE=str(needed), STUB_HOSTS=hosts).returncode == 0


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "10.0.0.7"),
        ({"STUB_ROUTE": "10.1.2.3"}, "10.1.2.3"),
        ({"STUB_ROUTE": "127.0.0.1"}, "10.0.0.7"),
        ({"STUB_ADDRESSES": "", "STUB_NAMED": "10.0.0.8"}, "10.0.0.8"),
        ({"RPEGC_HEAD_ADDRESS": "172.16.0.1"}, "172.16.0.1"),
        ({"STUB_ADDRESSES": "127.0.1.1 fe80::1"}, None),
    ],
    ids=["first of the host", "default route", "loopback route", "name", "given", "none"],
)
def test_the_head_never_listens_on_a_loopback(cluster: Cluster, variables: dict[str, str], address: str | None) -> None:
    done = cluster.run("submit.sbatch", **variables)
    if address is None:
        assert done.returncode == 1
        assert "nid001 has no IPv4 address that other nodes can reach: set RPEGC_HEAD_ADDRESS" in done.stderr
    else:
        assert any(f"--head --node-ip-address={address} --port" in call for call in cluster.calls)
        assert any(f"ray start --address={address}:6379" in call for call in cluster.calls)


def test_arguments_of_the_job_reach_the_driver(cluster: Cluster) -> None:
    """SLURM then shows them behind the script's name, which must still be found."""
    asked = "trainer.logger=[console,file,wandb]"
    done = cluster.run("submit.sbatch", asked, "a b", STUB_ARGUMENTS=f"{asked} a b")
    assert done.returncode == 0, done.stderr
    assert cluster.trained_with[-2:] == [asked, "a b"]


@pytest.mark.parametrize("shown", ["(null)", "/home/user/other.sh"])
def test_a_job_that_cannot_find_its_folder_asks_for_it(cluster: Cluster, shown: str) -> None:
    done = cluster.run("submit.sbatch", STUB_SCRIPT=shown)
    assert done.returncode == 1
    assert "set RPEGC_LAUNCH_DIR" in done.stderr
    assert cluster.run("submit.sbatch", STUB_SCRIPT=shown, RPEGC_LAUNCH_DIR=str(cluster.launch)).returncode == 0


SUBMIT_ELSEWHERE = "submit from the folder that relative paths of the pipeline start in, or set RPEGC_RUN_DIR"


@pytest.mark.parametrize("below", [".", "launch", "launch/deeper"])
@pytest.mark.parametrize("linked", [False, True])
def test_checkpoints_never_go_into_the_compiled_folder(
    cluster: Cluster, below: str, linked: bool, tmp_path: Path
) -> None:
    folder = cluster.launch.parent / below
    folder.mkdir(exist_ok=True)
    before = sorted(cluster.launch.parent.rglob("*"))
    if linked:
        (tmp_path / "link").symlink_to(folder)
        folder = tmp_path / "link"
    done = cluster.run("submit.sbatch", SLURM_SUBMIT_DIR=str(folder))
    assert done.returncode == 1
    assert SUBMIT_ELSEWHERE in done.stderr
    assert not [call for call in cluster.calls if call.startswith("srun")]
    assert sorted(cluster.launch.parent.rglob("*")) == before
    elsewhere = {"SLURM_SUBMIT_DIR": str(folder), "RPEGC_RUN_DIR": str(tmp_path / "runs")}
    assert cluster.run("submit.sbatch", **elsewhere).returncode == 0


def test_a_folder_beside_the_compiled_one_is_no_part_of_it(cluster: Cluster) -> None:
    beside = Path(f"{cluster.launch.parent} 2")
    beside.mkdir()
    assert cluster.run("submit.sbatch", SLURM_SUBMIT_DIR=str(beside)).returncode == 0


def test_the_local_run_refuses_the_compiled_folder_and_too_few_cpus(tmp_path: Path) -> None:
    local = Cluster(tmp_path, emitted(lora(), tmp_path / "out"))
    inside = local.run("run_local.sh", SLURM_SUBMIT_DIR=str(local.launch))
    assert inside.returncode == 1
    assert SUBMIT_ELSEWHERE in inside.stderr
    few = local.run("run_local.sh", RPEGC_CPUS_PER_NODE="21")
    assert few.returncode == 1
    assert "22 CPUs" in few.stderr
    assert not local.calls


def test_one_node_runs_without_slurm(tmp_path: Path) -> None:
    local = Cluster(tmp_path, emitted(lora(), tmp_path / "out"))
    done = local.run("run_local.sh", "trainer.val_only=True", STUB_TRAIN="5")
    assert done.returncode == 5
    assert local.trained_with[-1] == "trainer.val_only=True"
    assert not [call for call in local.calls if call.startswith("srun")]
    assert any("start --head --node-ip-address=127.0.0.1" in call for call in local.calls)
    assert "ray stop" not in local.calls  # it would end another job's Ray on this node


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
