"""The launch folder: scripts that a linter accepts, the same bytes every time, and a README that says what holds."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from verl_launches import emitted
from verl_plans import (
    colocate_async,
    colocated_grpo,
    lora,
    megatron_grpo,
    megatron_ppo,
    one_step_off,
    ppo,
    separate_async,
)

from backends import backend
from backends.launching import object_store_bytes, slurm_time
from backends.site import load_site, site_names
from backends.verl.request import request_of
from rpegc.errors import InputError
from rpegc.plan import MemoryPhase, Plan
from rpegc.units import GIB

PLANS: dict[str, Plan] = {
    "grpo": colocated_grpo(),
    "ppo": ppo(),
    "one-step-off": one_step_off(),
    "lora": lora(),
    "megatron-grpo": megatron_grpo(),
    "megatron-ppo": megatron_ppo(),
    "separate-async": separate_async(),
    "colocate-async": colocate_async(),
}
BIN = Path(sys.executable).parent


@pytest.mark.parametrize("name", PLANS)
def test_files_are_as_reviewed(name: str, golden: Callable[[str, str], None]) -> None:
    files = backend("verl").emit(PLANS[name])
    golden(f"verl/{name}.overrides.txt", files["launch/verl_overrides.txt"].content.decode())
    golden(f"verl/{name}.submit.sbatch", files["launch/submit.sbatch"].content.decode())


def test_shared_files_are_as_reviewed(golden: Callable[[str, str], None]) -> None:
    files = backend("verl").emit(PLANS["lora"], "generic")
    for name in (
        "run_local.sh",
        "ray_node.sh",
        "train.sh",
        "preflight.sh",
        "environment.sh",
        "folders.sh",
        "submit.sbatch",
        "README.md",
    ):
        golden(f"verl/shared.{name}", files[f"launch/{name}"].content.decode())
    golden(
        "verl/megatron.environment.sh",
        backend("verl").emit(PLANS["megatron-grpo"])["launch/environment.sh"].content.decode(),
    )
    golden("verl/alps.README.md", backend("verl").emit(PLANS["ppo"])["launch/README.md"].content.decode())
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
    assert len(programs) == 4
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


def test_a_shared_cluster_is_told_what_to_ask_for() -> None:
    phase = MemoryPhase("all", "generate", {}, 0.0, 1.0, 1.0, {}, 100 * GIB, 4e11)
    script = backend("verl").emit(replace(colocated_grpo(), memory=(phase,)), "generic")["launch/submit.sbatch"]
    lines = script.content.decode().splitlines()
    assert any(line.startswith("#   --cpus-per-task=16 ") for line in lines)
    assert any(line.startswith("#   --mem=111G ") for line in lines)
    assert "#SBATCH --exclusive" in lines
    assert "#SBATCH --mem=0" in lines
    assert not [line for line in lines if line.startswith("#SBATCH --cpus-per-task")]


def test_the_readme_says_what_the_prediction_holds() -> None:
    def readme(plan: Plan, site: str = "alps") -> str:
        return backend("verl").emit(plan, site)["launch/README.md"].content.decode()

    # 500 steps of 100 s, and of 130 s at the upper end of the interval
    expected = "expected to take 13.9 h; 18.1 h at the slow end of the plan's 80 % interval"
    assert expected in readme(PLANS["grpo"])
    assert "`training.total_steps` is not set" in readme(colocated_grpo(**{"training.total_steps": None}))
    assert "neither tests (`test_freq`) nor checkpoints (`save_freq`)" in readme(PLANS["grpo"])
    assert "vLLM takes 0.8 of the memory of each GPU of the rollout and gives it back" in readme(PLANS["grpo"])
    assert "The reward model is served by vLLM on 2 GPUs a server" in readme(PLANS["ppo"])
    assert "takes 0.9 of their memory" in readme(PLANS["ppo"])
    assert "takes 0.5 of their memory" in readme(ppo(own_pool=False))
    assert "`RPEGC_CONTAINER_MOUNTS`" in readme(PLANS["grpo"], "generic")
    assert "--files" in readme(PLANS["lora"])
