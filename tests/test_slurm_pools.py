"""A real SLURM runs the emitted heterogeneous job: a component for each pool, ranks in order, one failure for all."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from preset_pipelines import preset_text
from slurm_cluster import Cluster, cluster

from rpegc.compiler import Options, compile_pipeline, plan_files, setting_of
from rpegc.emit import write_files
from rpegc.frontend.load import pipeline_from_text

pytestmark = pytest.mark.proof

POOLS = "{pools: {train: {hardware: gh200-alps, nodes: 1}, rollout: {hardware: gh200-alps, nodes: 1}}, site: generic}"
STAND_IN = """#!/bin/bash
echo "node=$SLURMD_NODENAME rank=$RPEGC_NODE_RANK master=$RPEGC_MASTER_ADDR arguments=$*" >> "$NOTES"
[[ -z "${FAILING_RANK:-}" ]] && exit 0
[[ $RPEGC_NODE_RANK == "$FAILING_RANK" ]] && exit 3
sleep 120
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


def run(slurm: Cluster, work: Path, **planted: str) -> tuple[int, list[str], str]:
    """Submit the job of a pooled plan; return its exit status, what each node's processes were, and the log."""
    pipeline = pipeline_from_text(preset_text("grpo", target="native", cluster=POOLS))
    options = Options(space="quick", tolerance=0.05)
    plan = compile_pipeline(pipeline, options)
    write_files(plan_files(plan, setting_of(pipeline, options)), work / "out put")
    (work / "bin").mkdir()
    (work / "bin" / "python3").write_text(STAND_IN)
    (work / "bin" / "python3").chmod(0o755)
    notes = work / "notes.txt"
    path = {"PATH": f"{work / 'bin'}:{slurm.environment['PATH']}", "NOTES": str(notes)}
    done = subprocess.run(
        ["sbatch", "--wait", str(work / "out put/launch/submit.sbatch")],
        env=slurm.environment | path | planted,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=90,
    )
    log = "".join(file.read_text() for file in work.glob("*.log"))
    return done.returncode, sorted(notes.read_text().splitlines()), log


def test_each_pool_has_its_nodes_and_the_ranks_go_on(slurm: Cluster, tmp_path: Path) -> None:
    status, notes, log = run(slurm, tmp_path)
    assert status == 0, log
    found = [re.match(r"node=(\S+) rank=(\d) master=(\S+) arguments=(.*)", line) for line in notes]
    assert [(match[1], match[2], match[3]) for match in found if match] == [
        ("nid001", "0", "nid001"),
        ("nid002", "1", "nid001"),
    ]
    assert all(match and "--nnodes=2 --nproc-per-node=4" in match[4] for match in found)
    assert all(match and f"--node-rank={match[2]} " in match[4] for match in found)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_failing_pool_ends_the_job_with_its_code(slurm: Cluster, tmp_path: Path, rank: str) -> None:
    status, notes, log = run(slurm, tmp_path, FAILING_RANK=rank)
    assert status == 3, log
    assert len(notes) == 2
