"""The launch folder of a plan for OpenRLHF: Ray on every node, and the driver with its command line."""

from __future__ import annotations

import json
import math
from typing import Any

from backends.launching import folder_files, job_values, object_store_bytes, rendered
from backends.openrlhf.arguments import arguments_of
from backends.openrlhf.capabilities import DEEPSPEED_VERSION, HYBRID, VERSION
from backends.preflight import input_files, missing_of
from backends.request import PipelineRequest
from backends.roles import parts_of
from backends.site import Site
from rpegc.emit import EmittedFile
from rpegc.plan import Plan

VERSIONS = {
    "openrlhf": f"=={VERSION}",
    "deepspeed": f"=={DEEPSPEED_VERSION}",
    "ray": ">=2.55",
    "vllm": ">=0.29",
    "transformers": ">=5.15",
    "flash-attn": ">=2.8.3",
}
"""Requirements in the metadata of OpenRLHF 0.11.2."""

CPUS_PER_GPU, ROLES_A_GPU, FREE_CPUS = 1, 5, 2
"""CPUs of a placement bundle, of which colocated roles share one, and of driver and trainer (COMMAND)."""


def launch_files(plan: Plan, site: Site) -> dict[str, EmittedFile]:
    """Return the files of `launch/` for a checked plan; InputError for a text that they cannot carry."""
    request, parts, mode = PipelineRequest(plan.pipeline), parts_of(plan, "OpenRLHF"), plan.graph.mode or HYBRID
    arguments = arguments_of(request, parts, mode, plan.seed)
    lines = "".join(f"{word}\n" for argument in arguments for word in argument.words)
    path, _, name = str(request.get("reward.function") or "").rpartition(":")
    store = object_store_bytes(plan, request)
    contents = {
        "openrlhf_arguments.txt": lines,
        "reward.json": json.dumps({"path": path, "name": name}, ensure_ascii=False) + "\n",
        "preflight.json": _json(_facts(plan, site, request, lines, path, name, store)),
    }
    cpus = CPUS_PER_GPU * plan.devices.gpus_per_node + FREE_CPUS
    values = job_values(plan, site, request) | {
        "version": VERSION,
        "deepspeed_version": DEEPSPEED_VERSION,
        "tool": "OpenRLHF",
        "ray": True,
        "megatron": False,
        "requeue": request.get("training.save_every") is not None,
        "exports": ("TOKENIZERS_PARALLELISM=true",),
        "example_override": "--logger.wandb.project=mine",
        "object_store_bytes": store,
        "cpus_needed": cpus,
        "cpus_reason": f"{CPUS_PER_GPU} for each GPU, {FREE_CPUS} for the driver",
        "mode": mode,
        "notes": _notes(request),
    }
    names = ["submit.sbatch=submit_ray.sbatch", "train.sh", "ray_node.sh", "preflight.sh", "environment.sh"]
    names += ["folders.sh", "README.md", "preflight.py", "parquet_columns.py", "wait_for_gpus.py"]
    names += ["run_local.sh=run_local_ray.sh"] * (plan.devices.nodes == 1)
    names += ["reward_func.py"] * bool(path)
    return folder_files(contents | rendered("backends.openrlhf", names, values))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _facts(
    plan: Plan, site: Site, request: PipelineRequest, lines: str, path: str, name: str, store: int
) -> dict[str, Any]:
    columns = [[request.get("data.prompt_key", "prompt")], [request.get("data.answer_key", "answer")]]
    train = request.get("data.train")
    return {
        "tool": "OpenRLHF",
        "commands": ["ray"],
        "missing": missing_of({"openrlhf_arguments.txt": lines}),
        "versions": VERSIONS,
        "modules": [],
        "gpus_per_node": plan.devices.gpus_per_node,
        "files": input_files(request, path),
        "data": [{"path": train, "columns": columns}] if train else [],
        "reward": {"path": path, "name": name} if path else None,
        "sources": None,
        "environment": {"NCCL_NET": site.expected_network} if site.expected_network else {},
        "object_store_bytes": store,
    }


def _notes(request: PipelineRequest) -> list[str]:
    steps = request.get("training.total_steps")
    found = [
        "These files have been checked against OpenRLHF's own argument parser; nobody has run them on GPUs.",
        "A reward function that raises an exception is logged by OpenRLHF, and its sample has no reward.",
    ]
    if steps:
        prompts = math.ceil(steps * request.prompts)
        found.append(f"{steps} steps need {prompts} prompts in the data: with fewer the run is shorter.")
    return found
