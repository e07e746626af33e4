"""The flavour openrlhf: PPO and separate engines on DeepSpeed, as command lines that OpenRLHF's parser accepts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from deepspeed_proofs import HERE, asked, program

from rpegc.compiler import Options, compile_pipeline, plan_files, setting_of
from rpegc.emit import Files, write_files
from rpegc.errors import InputError
from rpegc.frontend.load import pipeline_from_text
from rpegc.plan import Plan

PPO = """
name: ppo
algorithm: ppo
models:
  actor: {config: Qwen/Qwen3-8B, weights: /models/Qwen3-8B}
  critic: {config: Qwen/Qwen3-8B, weights: /models/critic}
  reward: {config: Qwen/Qwen3-8B, weights: ./judge}
  reference: {like: actor}
workload:
  prompts_per_step: 128
  samples_per_prompt: 4
  prompt_tokens: {mean: 200, max: 512}
  response_tokens: {mean: 800, p99: 1900, max: 2048}
  minibatches_per_step: 2
data: {train: data/train.parquet}
training:
  {learning_rate: 1.0e-6, kl: {coefficient: 0.01, where: reward, estimator: k1}, total_steps: 100, save_every: 10}
cluster: {hardware: gh200-alps, nodes: 8, site: alps}
target: deepspeed
target_flavour: openrlhf
"""
GRPO = (
    PPO.replace("algorithm: ppo", "algorithm: grpo")
    .replace("  critic: {config: Qwen/Qwen3-8B, weights: /models/critic}\n", "")
    .replace("  reward: {config: Qwen/Qwen3-8B, weights: ./judge}\n", "")
    .replace("where: reward, estimator: k1", "where: loss")
    .replace("nodes: 8", "nodes: 1")
    .replace("site: alps", "site: generic")
    .replace("cluster:", 'reward: {function: "reward.py:score"}\ncluster:')
)
APART = GRPO.replace("nodes: 1", "nodes: 4") + "fix: {rollout: {offload: false}}\n"
TEXTS = {"PPO": PPO, "GRPO": GRPO, "engines apart": APART}


@cache
def compiled(name: str) -> tuple[Plan, Files]:
    pipeline, options = pipeline_from_text(TEXTS[name]), Options(space="quick")
    plan = compile_pipeline(pipeline, options)
    return plan, plan_files(plan, setting_of(pipeline, options))


def arguments_of(name: str) -> list[str]:
    return compiled(name)[1]["launch/openrlhf_arguments.txt"].content.decode().splitlines()


def test_command_lines_are_as_reviewed(golden: Callable[[str, str], None]) -> None:
    for name in ("PPO", "GRPO"):
        kept = [line for line in arguments_of(name) if "_tokens_per_gpu" not in line and "memory_util" not in line]
        golden(f"openrlhf/{name}.arguments.txt", "\n".join(kept) + "\n")
    files = compiled("GRPO")[1]
    golden("openrlhf/shared.train.sh", files["launch/train.sh"].content.decode())


def test_roles_of_ppo_share_all_gpus() -> None:
    plan, _ = compiled("PPO")
    words = arguments_of("PPO")
    assert plan.graph.mode == "hybrid"
    assert plan.target.version == "0.19.6"  # what OpenRLHF pins
    assert {"--train.colocate_all", "--vllm.enable_sleep", "--algo.advantage.estimator=gae"} <= set(words)
    layout = next(stage.layout for stage in plan.stages if stage.op == "generate")
    assert f"--vllm.num_engines={layout.replicas}" in words  # type: ignore[union-attr]


def test_engines_may_have_gpus_of_their_own() -> None:
    plan, _ = compiled("engines apart")
    words = arguments_of("engines apart")
    assert plan.graph.mode == "separate"
    assert "--train.colocate_actor_ref" in words
    assert not {"--train.colocate_all", "--vllm.enable_sleep"} & set(words)


@pytest.mark.parametrize("name", TEXTS)
def test_scripts_are_clean(name: str, tmp_path: Path) -> None:
    write_files(compiled(name)[1], tmp_path)
    launch = tmp_path / "launch"
    scripts = [str(path) for path in sorted(launch.iterdir()) if path.suffix in (".sh", ".sbatch")]
    found = subprocess.run([str(Path(sys.executable).parent / "shellcheck"), *scripts], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_the_driver_gets_its_folders_and_no_shell_reads_a_word(tmp_path: Path) -> None:
    """Folders with hostile names arrive unchanged; the driver here prints its arguments."""
    work = tmp_path / "work $(touch HACKED) `touch HACKED` & ;x"
    work.mkdir()
    write_files(compiled("GRPO")[1], work / "out")
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "python3").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (fake / "python3").chmod(0o755)
    done = subprocess.run(
        ["bash", str(work / "out" / "launch" / "train.sh"), "--eval.steps=-1"],
        env={"PATH": f"{fake}:/usr/bin:/bin", "RPEGC_RUN_DIR": str(work / "run")},
        cwd=work,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert f"--data.prompt_dataset={work}/data/train.parquet" in words
    assert f"--reward.remote_url={work}/out/launch/reward_func.py" in words
    assert f"--ckpt.path={work}/run/checkpoints" in words
    assert words[-1] == "--eval.steps=-1"
    assert not [path for path in tmp_path.rglob("*") if path.name == "HACKED"]


def test_the_reward_function_is_called_with_the_response_alone(tmp_path: Path) -> None:
    write_files(compiled("GRPO")[1], tmp_path)
    (tmp_path / "reward.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': float(solution_str == ground_truth)}\n"
    )
    call = (
        "from reward_func import reward_func as f; print(f(['1+1=2'], ['1+1='], ['2']), f(['1+1=3'], ['1+1='], ['2']))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", call],
        cwd=tmp_path / "launch",
        env={"RPEGC_WORK_DIR": str(tmp_path), "PYTHONPATH": str(tmp_path / "launch")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("'rewards': 1.0") == done.stdout.count("'rewards': 0.0") == 1, done.stderr


CASES = {
    "adapters": (GRPO, "  {learning", "  {lora_rank: 8, learning", "  {lora_rank", "not written for adapters"),
    "a function and a model": (
        PPO,
        "cluster:",
        "reward: {seconds_per_sample: 0.1}\ncluster:",
        "reward: {",
        "a function or",
    ),
    "a path that is cut": (GRPO, "data/train.parquet", "data/a@b.parquet", "data:", "for its `@`"),
    "an owned flag": (
        GRPO,
        "target: deepspeed",
        "target_overrides: {ds.zero_stage: 1}\ntarget: deepspeed",
        "target_overrides",
        "decided by the planner",
    ),
    "a flag in a list": (
        GRPO,
        "target: deepspeed",
        'target_overrides: {actor.adam.betas: ["0.9", "--actor.adam.lr=7"]}\ntarget: deepspeed',
        "target_overrides",
        "would be a flag of its own",
    ),
    "a mark of ours": (
        GRPO,
        "target: deepspeed",
        'target_overrides: {logger.wandb.group: "{run}/x"}\ntarget: deepspeed',
        "target_overrides",
        "replaces by a folder",
    ),
    "a home nobody expands": (GRPO, "data/train.parquet", "~/train.parquet", "data:", "nothing expands the `~`"),
    "an old name": (
        GRPO,
        "target: deepspeed",
        "target_overrides: {eps_clip: 0.1}\ntarget: deepspeed",
        "target_overrides",
        "no flag --eps_clip",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_at_its_line(name: str) -> None:
    text, old, new, line, words = CASES[name]
    assert old in text
    with pytest.raises(InputError) as found:
        setting_of(pipeline_from_text(text.replace(old, new, 1)), Options())
    assert words in str(found.value)
    assert found.value.position is not None
    assert line in found.value.position.text


def test_the_option_of_compile_stands_for_the_key() -> None:
    text = PPO.replace("target_flavour: openrlhf\n", "")
    with pytest.raises(InputError, match="has no critic"):
        setting_of(pipeline_from_text(text), Options())
    setting = setting_of(pipeline_from_text(text), Options(flavour="openrlhf"))
    assert setting.pipeline.resolved()["target_flavour"] == "openrlhf"
    assert setting.context.capabilities.engine_class == "deepspeed-openrlhf"


# OpenRLHF's own parser, and the checks that its program makes before it trains.


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    requests = {name: {"arguments": arguments_of(name)} for name in TEXTS}
    sound = requests["PPO"]["arguments"]
    requests["a wrong flag"] = {"arguments": [*sound, "--zero_stage=3"]}
    requests["a wrong type"] = {"arguments": [*sound, "--ds.zero_stage=three"]}
    requests["too few ranks"] = {"arguments": [*sound, "--rollout.batch_size=1"]}
    found = asked("openrlhf_parser.py", list(requests.values()), tmp_path_factory.mktemp("parsed"))
    return dict(zip(requests, found, strict=True))


@pytest.mark.proof
@pytest.mark.parametrize("name", TEXTS)
def test_openrlhf_accepts_the_command_line(parsed: dict[str, dict[str, Any]], name: str) -> None:
    assert parsed[name]["ok"], parsed[name]
    assert "Warning" not in parsed[name]["said"].replace("[Warning] Please use --attn_implementation", "")
    values = parsed[name]["values"]
    for line in arguments_of(name):
        flag, sign, text = line.removeprefix("--").partition("=")
        if sign and not text.startswith("{"):
            assert str(values[flag]) in (text, str(float(text)) if text.replace(".", "").isdigit() else text), flag


@pytest.mark.proof
@pytest.mark.parametrize("name", ["a wrong flag", "a wrong type", "too few ranks"])
def test_the_parser_has_teeth(parsed: dict[str, dict[str, Any]], name: str) -> None:
    assert not parsed[name]["ok"]


@pytest.mark.proof
def test_the_list_of_flags_is_that_of_the_parser() -> None:
    listed = (Path(__file__).parent.parent / "backends" / "openrlhf" / "flags-0.11.2.txt").read_text()
    assert program([str(HERE / "openrlhf_parser.py"), "flags"], 60) == listed


def test_the_preflight_names_what_openrlhf_needs() -> None:
    wanted = json.loads(compiled("GRPO")[1]["launch/preflight.json"].content)
    assert wanted["versions"]["openrlhf"] == "==0.11.2"
    assert wanted["versions"]["deepspeed"] == "==0.19.6"
