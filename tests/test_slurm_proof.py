"""A real SLURM accepts every emitted job script and runs one from start to end; run by `make proof-slurm`."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from example_plans import EXAMPLES, ONE_STEP_OFF, example_files, separate_rollout
from slurm_cluster import Cluster, Job, calls_of, cluster

from rpegc.compiler import Options, Setting, compile_pipeline, plan_files, setting_of
from rpegc.emit import Files, write_files
from rpegc.frontend.load import pipeline_from_text
from rpegc.plan import Plan

pytestmark = pytest.mark.proof

NODES = ("nid001", "nid002")
JOB_LIMIT_S = 60.0
SCRIPTS = [*(path.stem for path in EXAMPLES), "one-step-off", "64 nodes"]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """The cluster; a SIGTERM ends the tests as an interrupt does, so that the daemons are stopped."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with cluster() as running:
        yield running
    signal.signal(signal.SIGTERM, before)


def planned(*changes: tuple[str, str]) -> tuple[Plan, Setting]:
    """Compile the small pipeline of the examples with parts of its text replaced."""
    text = ONE_STEP_OFF
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    pipeline, options = pipeline_from_text(text), Options(space="quick")
    return compile_pipeline(pipeline, options), setting_of(pipeline, options)


@cache
def script_files(name: str) -> Files:
    if name == "one-step-off":
        return separate_rollout()[1]
    if name == "64 nodes":
        return plan_files(*planned(("nodes: 4", "nodes: 64"), ("prompts_per_step: 64", "prompts_per_step: 1024")))
    return example_files(next(path for path in EXAMPLES if path.stem == name))


def two_node_plan(train: str = "train.jsonl") -> tuple[Plan, Setting]:
    """Plan for two nodes whose inputs lie in the folder of submission."""
    return planned(
        ("name: one-step-off", "name: two-nodes"),
        ("nodes: 4", "nodes: 2"),
        ("max_staleness: 1", "max_staleness: 0"),
        ("/models/Qwen3-8B", "./weights"),
        ("/data/train.parquet", json.dumps(train)),
        (", val: /data/val.parquet", ""),
        ("total_steps: 10", "total_steps: 10, learning_rate: 1.0e-6"),
    )


@cache
def two_nodes() -> Files:
    return plan_files(*two_node_plan())


def prepared(folder: Path, files: Files, compiled_name: str = "out put", train: str = "train.jsonl") -> Path:
    """Write the launch and its inputs; return the script. Jobs are submitted from `folder`."""
    folder.mkdir()
    (folder / "weights").mkdir()
    (folder / train).write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    (folder / "reward.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    )
    write_files(files, folder / compiled_name)
    return folder / compiled_name / "launch" / "submit.sbatch"


# What the scheduler says of the headers.


def options_of(name: str) -> list[str]:
    """Return what a user adds on the command line: the nodes of eight H100 lie in a partition of their own."""
    return ["--partition=h100"] if name.startswith("lora") else []


@pytest.mark.parametrize("name", SCRIPTS)
def test_slurm_would_start_every_script(slurm: Cluster, name: str, tmp_path: Path) -> None:
    write_files(script_files(name), tmp_path / "out")
    script = tmp_path / "out" / "launch" / "submit.sbatch"
    answer = slurm.test_only(script, *options_of(name))
    assert answer.returncode == 0, answer.stderr
    nodes = re.search(r"#SBATCH --nodes=(\d+)", script.read_text())
    assert nodes
    found = slurm.command("scontrol", "show", "hostnames", answer.stderr.split()[-4])
    assert len(found.stdout.split()) == int(nodes[1]), answer.stderr


MISTAKES = [
    ("nodes=64", "nodes=65", "More processors requested than permitted"),
    ("gpus-per-node=4", "gpus-per-node=5", "node configuration is not available"),
    ("cpus-per-task=288", "cpus-per-task=289", "More processors requested than permitted"),
    ("partition=normal", "partition=nromal", "invalid partition"),
    (r"time=[\d:]+", "time=a-day", "[Ii]nvalid.*time"),
    (r"time=[\d:]+", "time=30:00:00", "time limit"),
]


@pytest.mark.parametrize(("right", "wrong", "words"), MISTAKES, ids=[mistake[1] for mistake in MISTAKES])
def test_slurm_refuses_a_planted_mistake(slurm: Cluster, right: str, wrong: str, words: str, tmp_path: Path) -> None:
    """The acceptance above has teeth."""
    text, count = re.subn(f"(?m)^#SBATCH --{right}$", f"#SBATCH --{wrong}", submit_text("64 nodes"))
    assert count == 1
    (tmp_path / "submit.sbatch").write_text(text)
    answer = slurm.test_only(tmp_path / "submit.sbatch")
    assert answer.returncode != 0, answer.stderr
    assert re.search(words, answer.stderr), answer.stderr


def submit_text(name: str) -> str:
    return script_files(name)["launch/submit.sbatch"].content.decode()


# A job from its submission to its end.


@pytest.fixture(scope="module")
def good(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A job whose second node joins late, and that ends well; and its folder of submission."""
    work = tmp_path_factory.mktemp("good") / "work"
    return slurm.submit(prepared(work, two_nodes()), work, JOB_LIMIT_S, RPEGC_PROOF_JOIN_DELAY_S="2"), work


def test_the_job_ends_well(good: tuple[Job, Path]) -> None:
    assert good[0].status == 0, good[0].log


def test_ray_starts_on_both_nodes_with_all_of_their_gpus_and_cpus(good: tuple[Job, Path]) -> None:
    starts = good[0].of("ray", "start")
    assert sorted(call["node"] for call in starts) == list(NODES)
    for call in starts:
        assert "--num-gpus=4" in call["arguments"]
        assert "--num-cpus=288" in call["arguments"]
        assert "--object-store-memory=1000000" in call["arguments"]
        assert call["visible"] == "0,1,2,3"


def test_steps_ask_for_all_cpus_of_their_nodes(good: tuple[Job, Path]) -> None:
    """Since SLURM 22.05 a step does not inherit the job's --cpus-per-task and would be bound to one core."""
    for call in good[0].of("ray", "start"):
        assert int(call["step"]["CPUs"]) == 288 * int(call["step"]["Nodes"])
        assert call["step"]["TresPerStep"] == f"cpu:{288 * int(call['step']['Nodes'])}"


def test_workers_find_the_head_at_an_address_that_other_nodes_reach(good: tuple[Job, Path]) -> None:
    starts = {call["node"]: call["arguments"] for call in good[0].of("ray", "start")}
    address = next(word.split("=")[1] for word in starts["nid001"] if word.startswith("--node-ip-address="))
    assert not address.startswith("127.")
    assert "--head" in starts["nid001"]
    assert f"--address={address}:6379" in starts["nid002"]
    (driver,) = good[0].of("driver")
    assert driver["environment"]["RAY_ADDRESS"] == f"{address}:6379"


def test_the_driver_runs_once_on_the_head_when_all_gpus_are_there(good: tuple[Job, Path]) -> None:
    job, work = good
    (driver,) = job.of("driver")
    assert driver["node"] == "nid001"
    assert driver["alive"] == list(NODES)
    assert driver["folder"] == str(work)
    counts = [len(call["alive"]) for call in job.of("cluster_resources")]
    assert counts[0] < 2, "the second node was to be late: nothing had to wait"
    assert counts[-1] == 2


def test_the_driver_gets_every_override_as_it_stands(good: tuple[Job, Path]) -> None:
    job, work = good
    lines = (work / "out put" / "launch" / "verl_overrides.txt").read_text().splitlines()
    assert job.of("driver")[0]["arguments"] == lines


def test_the_driver_inherits_the_site_s_network_and_the_node_s_gpus(good: tuple[Job, Path]) -> None:
    environment = good[0].of("driver")[0]["environment"]
    assert environment["NCCL_NET"] == "AWS Libfabric"
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_ray_stops_on_every_node_after_the_driver(good: tuple[Job, Path]) -> None:
    programs = [(call["program"], call.get("arguments", [""])[0], call["node"]) for call in good[0].calls]
    stops = [call for call in programs if call[:2] == ("ray", "stop")]
    assert sorted(node for _, _, node in stops) == list(NODES)
    assert programs[-2:] == stops


def test_logs_land_where_the_script_says(good: tuple[Job, Path]) -> None:
    job, work = good
    assert "the driver's own words" in (work / f"two-nodes-{job.number}.log").read_text()
    assert (work / "runs" / "two-nodes" / f"metrics-{job.number}.jsonl").read_text() == '{"step": 1}\n'


def test_no_process_of_a_job_is_left(slurm: Cluster, good: tuple[Job, Path]) -> None:
    assert slurm.jobs_left() == []


def test_the_job_ends_with_the_driver_s_status(slurm: Cluster, tmp_path: Path) -> None:
    """On loopback throughout: the user's address of the head counts."""
    work = tmp_path / "work"
    variables = {"RPEGC_PROOF_DRIVER_STATUS": "7", "RPEGC_HEAD_ADDRESS": "127.0.0.1", "RPEGC_RAY_PORT": "6380"}
    job = slurm.submit(prepared(work, two_nodes()), work, JOB_LIMIT_S, **variables)
    assert job.status == 7, job.log
    assert job.of("driver")[0]["environment"]["RAY_ADDRESS"] == "127.0.0.1:6380"
    assert sorted(call["node"] for call in job.of("ray", "stop")) == list(NODES)
    assert slurm.jobs_left() == []


@pytest.mark.parametrize("node", NODES)
def test_a_node_without_ray_fails_the_job_long_before_the_wait_is_over(
    slurm: Cluster, node: str, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    job = slurm.submit(prepared(work, two_nodes()), work, JOB_LIMIT_S, RPEGC_PROOF_FAILING_NODE=node)
    assert job.status == 1, job.log
    assert "Ray ended on a node before all 8 GPUs were there" in job.log
    assert sorted(call["node"] for call in job.of("ray", "start")) == list(NODES)
    assert job.of("driver") == []
    assert slurm.jobs_left() == []


def test_gpus_that_never_come_fail_the_job_when_the_wait_is_over(slurm: Cluster, tmp_path: Path) -> None:
    work = tmp_path / "work"
    variables = {"RPEGC_PROOF_JOIN_DELAY_S": "200", "RPEGC_RAY_WAIT_S": "6"}
    job = slurm.submit(prepared(work, two_nodes()), work, JOB_LIMIT_S, **variables)
    assert job.status == 1, job.log
    assert re.search("shows 4 of 8 GPUs after 6 s", job.log), job.log
    assert job.of("driver") == []
    assert slurm.jobs_left() == []


def test_an_input_that_is_missing_ends_the_job_before_ray(slurm: Cluster, tmp_path: Path) -> None:
    work = tmp_path / "work"
    script = prepared(work, two_nodes())
    (work / "train.jsonl").unlink()
    job = slurm.submit(script, work, JOB_LIMIT_S)
    assert job.status == 1, job.log
    assert job.log.count("data.train: train.jsonl does not exist") == len(NODES), job.log
    assert job.calls == ()


def test_a_cancelled_job_leaves_nothing_behind(slurm: Cluster, tmp_path: Path) -> None:
    work = tmp_path / "work"
    with slurm.start(prepared(work, two_nodes()), work, RPEGC_PROOF_DRIVER_S="300") as submitted:
        slurm.wait_until(lambda: any(call["program"] == "driver" for call in calls_of(work)), 40, work)
        slurm.command("scancel", "--user=root")
        job = slurm.end(submitted, work, JOB_LIMIT_S)
    assert job.status != 0
    assert slurm.jobs_left() == []


# Texts of the user that a shell must not read.

HOSTILE = "da ta $(touch HACKED) `touch HACKED` ;touch HACKED; && 'q' \"d\" ü 模 -rf * # 100%"
HOSTILE_FILE = HOSTILE + " \\n"  # SLURM itself puts no log into a folder with a backslash or %j in its name
HOSTILE_ARGUMENTS = (f"trainer.experiment_name={HOSTILE_FILE}", "trainer.project_name=x/submit.sbatch -rf $HOME")


@pytest.fixture(scope="module")
def hostile(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path, Path]:
    """A job whose plan, data, folders and arguments all have hostile names."""
    root = tmp_path_factory.mktemp("hostile")
    work = root / HOSTILE
    train = f"{HOSTILE_FILE}.jsonl"
    plan, setting = two_node_plan(train)
    # The language refuses such a name; the emitted scripts do not rely on that.
    plan = replace(plan, name=f"../{HOSTILE}", pipeline=plan.pipeline | {"name": f"../{HOSTILE}"})
    script = prepared(work, plan_files(plan, setting), f"out {HOSTILE_FILE}", train)
    variables = {"RPEGC_RUN_DIR": f"runs {HOSTILE_FILE}"}
    return slurm.submit(script, work, JOB_LIMIT_S, *HOSTILE_ARGUMENTS, **variables), root, work


def test_hostile_names_do_not_execute(hostile: tuple[Job, Path, Path]) -> None:
    job, root, _ = hostile
    assert job.status == 0, job.log
    assert [path for path in root.rglob("*") if path.name.startswith("HACKED")] == []


def test_hostile_names_arrive_unchanged(hostile: tuple[Job, Path, Path]) -> None:
    job, _, work = hostile
    (driver,) = job.of("driver")
    assert driver["folder"] == str(work)
    assert driver["environment"]["RPEGC_RUN_DIR"] == str(work / f"runs {HOSTILE_FILE}")
    lines = (work / f"out {HOSTILE_FILE}" / "launch" / "verl_overrides.txt").read_text().splitlines()
    assert driver["arguments"] == [*lines, *HOSTILE_ARGUMENTS]
    assert any("touch HACKED" in line for line in lines)
