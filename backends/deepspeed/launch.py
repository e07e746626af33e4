"""The launch folder of a plan: job script, trainer, its settings, DeepSpeed's configuration, preflight, README."""

from __future__ import annotations

import json
from typing import Any

from backends.deepspeed.capabilities import SERVER, TRL_VERSION, VERSION
from backends.deepspeed.overrides import nested, settings_with_overrides
from backends.deepspeed.preflight import VERSIONS, preflight_facts
from backends.deepspeed.run import Run, run_of
from backends.deepspeed.settings import Setting
from backends.launching import folder_files, job_values, rendered
from backends.site import Site
from rpegc.emit import EmittedFile
from rpegc.plan import Plan

EXPORTS = ("TOKENIZERS_PARALLELISM=false", "OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}")
"""What the processes inherit beside the site's variables; eight threads as CSCS's scripts for GH200 nodes set."""

CPUS_PER_RANK = 2
"""CPUs without which a rank and its data thread wait for each other (assumed)."""


def launch_files(plan: Plan, site: Site) -> dict[str, EmittedFile]:
    """Return the files of `launch/` for a checked plan; InputError for a text that they cannot carry."""
    run = run_of(plan)
    settings = settings_with_overrides(run)
    contents = {
        "settings.json": _json(trainer_settings(run, settings)),
        "ds_config.json": _json(nested(settings, "deepspeed")),
    }
    if run.mode == SERVER:
        contents["vllm_server.txt"] = "".join(f"{line}\n" for line in server_arguments(run, settings))
    contents["preflight.json"] = _json(preflight_facts(plan, site, run, contents))
    names = ["submit.sbatch", "run.sh", "train_grpo.py", "rewards.py", "start_ranks.py", "README.md"]
    names += ["preflight.sh", "preflight.py", "parquet_columns.py", "environment.sh", "folders.sh"]
    names += ["run_local.sh"] * (plan.devices.nodes == 1)
    return folder_files(contents | rendered("backends.deepspeed", names, _values(plan, site, run)))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def trainer_settings(run: Run, settings: tuple[Setting, ...]) -> dict[str, Any]:
    """Return what `train_grpo.py` reads."""
    request, function = run.request, run.request.reward_function
    workers = int(request.get("reward.workers_per_node", 1))
    return {
        "model": {kind: request.model_path("actor", kind) for kind in ("weights", "tokenizer")},
        "data": {
            "train": request.setting("data.train"),
            "val": request.get("data.val") if request.get("training.test_every") else None,
            "prompt_key": request.get("data.prompt_key", "prompt"),
            "answer_key": request.get("data.answer_key"),
            "max_prompt_tokens": request.max_prompt_tokens,
        },
        "reward": {"path": function[0], "name": function[1], "workers": workers} if function else None,
        "lora": nested(settings, "lora") or None,
        "grpo": nested(settings, "grpo"),
    }


def server_arguments(run: Run, settings: tuple[Setting, ...]) -> list[str]:
    """Return the arguments of `vllm serve`: the model, then a flag a setting."""
    model = run.request.model_path("actor", "weights")
    arguments = [f"./{model}" if model.startswith("-") else model]
    for key, value in nested(settings, "vllm").items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            values = value if isinstance(value, list) else [value]
            arguments += [f"--{flag}={item}" for item in values]
    return arguments


def _values(plan: Plan, site: Site, run: Run) -> dict[str, Any]:
    train, rollout = run.parts.actor.mesh, run.parts.rollout.mesh
    gpus = plan.devices.gpus_per_node
    return job_values(plan, site, run.request) | {
        "version": VERSION,
        "trl_version": TRL_VERSION,
        "tool": "TRL on DeepSpeed",
        "ray": False,
        "megatron": False,
        "requeue": run.request.get("training.save_every") is not None,
        "exports": EXPORTS,
        "example_override": "report_to=wandb",
        "cpus_needed": CPUS_PER_RANK * gpus,
        "cpus_reason": f"{CPUS_PER_RANK} for each GPU",
        "train": train,
        "train_part": train.gpus_per_node < gpus,
        "server": rollout if run.mode == SERVER else None,
        "packages": ", ".join(f"{name} {rule.removeprefix('==')}" for name, rule in VERSIONS.items()),
        "notes": notes(run),
    }


def notes(run: Run) -> list[str]:
    """Return what a reader should know about how TRL carries out this plan."""
    layout, rollout = run.parts.actor.layout, run.parts.rollout
    found = [
        "The predicted step contains neither tests nor checkpoints, nor the start.",
        "A rank pads all its samples of a step to the longest of them; the price counts that.",
        "The reward function is called as verl calls it: `score(data_source, solution_str, ground_truth, extra_info)`."
        if run.request.reward_function
        else "TRL's own verifier of mathematical answers judges (`trl.rewards.accuracy_reward`).",
    ]
    if run.mode != SERVER:
        found.append(
            f"vLLM takes {rollout.layout.memory_fraction} of the memory of each GPU"
            f"{' and gives it back while it sleeps' if rollout.layout.offload else ''} "
            f"(`fix: {{{rollout.name}: {{memory_fraction: ...}}}}` changes it)."
        )
    if layout.offload_optimizer:
        kind = "SuperOffload" if run.superchip and layout.zero == 3 else "DeepSpeed's CPU Adam"
        found.append(f"The optimizer steps on the host ({kind}); the speed of that is an assumption of the price.")
    if layout.offload_parameters:
        found.append("Weights are streamed from the host for every use, which the price does not count.")
    return found
