"""The launch folder of a plan: job script, driver, preflight, settings, README."""

from __future__ import annotations

import json
import math
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from backends.site import Site
from backends.verl.capabilities import ONE_STEP_OFF, VERSION
from backends.verl.overrides import overrides_of
from backends.verl.request import MISSING, Request, request_of
from backends.verl.roles import Parts, parts_of
from backends.verl.run import mode_of, run_of
from backends.verl.settings import server_tp
from rpegc.emit import EmittedFile, one_line, quote_bash, slug
from rpegc.plan import Plan
from rpegc.units import GIB, format_seconds

FOLDER = "launch"
MODULES = {
    "sync": "verl.trainer.main_ppo",
    ONE_STEP_OFF: "verl.experimental.one_step_off_policy.main_ppo",
}
"""The driver by launch mode."""

START_S = 1800.0
"""Seconds granted for loading weights, compiling graphs and the first test (assumed)."""
SLACK = 1.1
"""Share of the expected time that the job may overrun, for tests and checkpoints (assumed)."""

BYTES_PER_TOKEN = 64
"""What a step's batch keeps per padded token: eight fields of 8 bytes (ids, masks, log-probs, values, advantages)."""
SMALLEST_STORE_BYTES = int(4 * GIB)
LARGEST_STORE_BYTES = int(64 * GIB)

VERSIONS = {"verl": f"=={VERSION}", "vllm": ">=0.18", "ray": ">=2.41", "TransferQueue": ">=0.1.10"}
"""verl/third_party/vllm/__init__.py and verl's own requirements."""

STATIC = ("preflight.py", "wait_for_gpus.py")


def launch_files(plan: Plan, site: Site) -> dict[str, EmittedFile]:
    """Return the files of `launch/` for a checked plan; InputError for a text that they cannot carry."""
    request, parts = request_of(plan), parts_of(plan)
    values = template_values(plan, site, request, parts)
    overrides = overrides_of(run_of(plan, site.cpus_per_node))
    lines = "".join(f"{override.line}\n" for override in overrides)
    contents = {
        "verl_overrides.txt": lines,
        "preflight.json": json.dumps(preflight_facts(plan, site, request, lines), indent=2, ensure_ascii=False) + "\n",
    }
    names = ["submit.sbatch", "train.sh", "ray_node.sh", "preflight.sh", "environment.sh", "README.md", *STATIC]
    names += ["run_local.sh"] * (plan.devices.nodes == 1) + ["dataset.py"] * (
        request.get("data.answer_key") is not None
    )
    templates = template_environment()
    for name in names:
        contents[name] = templates.get_template(f"{name}.j2").render(values)
    return {
        f"{FOLDER}/{name}": EmittedFile(contents[name].encode(), name.endswith((".sh", ".sbatch")))
        for name in sorted(contents)
    }


def template_environment() -> Environment:
    """Return the templates: an undefined name is an error, `bash` quotes a word for the shell."""
    environment = Environment(
        loader=PackageLoader("backends.verl", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # `${#array[@]}` of bash is no comment
        comment_end_string="##}",
        autoescape=False,  # shell and Python, not HTML; user texts pass through the quoting of rpegc.emit
    )
    environment.filters["bash"] = quote_bash
    return environment


def template_values(plan: Plan, site: Site, request: Request, parts: Parts) -> dict[str, Any]:
    """Return what the templates may name."""
    seconds = expected_seconds(plan, request)
    limit = min(seconds * SLACK + START_S, site.maximum_time_s) if seconds else site.maximum_time_s
    return {
        "title": slug(plan.name),
        "job_name": slug(plan.name),
        "version": VERSION,
        "site": site,
        "folder": FOLDER,
        "module": MODULES[mode_of(plan)],
        "nodes": plan.devices.nodes,
        "gpus_per_node": plan.devices.gpus_per_node,
        "gpus": plan.devices.nodes * plan.devices.gpus_per_node,
        "time_limit": slurm_time(limit),
        "time_bounded": bool(seconds) and seconds * SLACK + START_S > site.maximum_time_s,
        "expected": format_seconds(seconds) if seconds else "an unknown time (`training.total_steps` is not set)",
        "saves": request.get("training.save_every") is not None,
        "object_store_bytes": object_store_bytes(plan, request),
        "notes": notes(plan, request, parts),
    }


def expected_seconds(plan: Plan, request: Request) -> float:
    """Return the upper end of the plan's 80 % interval for the whole run; 0 if the number of steps is not known."""
    return plan.period_interval_s[1] * int(request.get("training.total_steps", 0))


def slurm_time(seconds: float) -> str:
    """Print seconds as SLURM's HH:MM:SS, rounded up to a minute."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def object_store_bytes(plan: Plan, request: Request) -> int:
    """Return the size of Ray's object store on a node: what the plan's host memory sets aside, else an estimate."""
    planned = [bytes_ for phase in plan.memory for term, bytes_ in phase.host_bytes.items() if "object_store" in term]
    if planned:
        return int(max(planned))
    tokens = request.prompts * request.samples * (request.max_prompt_tokens + request.max_response_tokens)
    return max(SMALLEST_STORE_BYTES, min(LARGEST_STORE_BYTES, tokens * BYTES_PER_TOKEN))


def preflight_facts(plan: Plan, site: Site, request: Request, lines: str) -> dict[str, Any]:
    """Return what preflight compares a node with."""
    versions, modules = dict(VERSIONS), ["tensordict"]
    if request.lora_rank:
        versions["peft"] = ">=0"
    if mode_of(plan) == ONE_STEP_OFF:
        modules.append("cupy")  # the NCCL checkpoint engine stages its buckets with it
    function = request.get("reward.function")
    path, _, name = str(function or "").rpartition(":")
    return {
        "missing": sorted({word for word in _words(lines) if word}),
        "versions": versions,
        "modules": modules,
        "gpus_per_node": plan.devices.gpus_per_node,
        "files": _input_files(request, path),
        "data": _columns(request),
        "reward": {"path": path, "name": name} if function else None,
        # Other variables may be better known to whoever set them before: a container hook, the user.
        "environment": {"NCCL_NET": site.expected_network} if site.expected_network else {},
        "object_store_bytes": object_store_bytes(plan, request),
    }


def _words(lines: str) -> list[str]:
    return [line.split(f"{MISSING}.", 1)[1].rstrip("'") for line in lines.splitlines() if f"{MISSING}." in line]


def _input_files(request: Request, reward_path: str) -> list[dict[str, str]]:
    files = [(f"data.{which}", request.get(f"data.{which}")) for which in ("train", "val")]
    for role in request.get("models", {}):
        for kind in ("weights", "tokenizer"):
            path = request.get(f"models.{role}.{kind}")
            # Anything else may be the name of a model on a hub.
            files.append((f"models.{role}.{kind}", path if path and str(path).startswith(("/", "~", ".")) else None))
    files.append(("reward.function", reward_path or None))
    return [
        {"what": what, "path": one_line(str(path), what)} for what, path in files if path and "://" not in str(path)
    ]


def _columns(request: Request) -> list[dict[str, Any]]:
    # Each entry lists columns of which one must be there: data in verl's own form has no answer column.
    columns = [[request.get("data.prompt_key", "prompt")], ["reward_model"]]
    if request.get("data.answer_key") is not None:
        columns[1].insert(0, request.get("data.answer_key"))
    paths = [request.get(f"data.{which}") for which in ("train", "val")]
    return [{"path": path, "columns": columns} for path in paths if path and "://" not in str(path)]


def notes(plan: Plan, request: Request, parts: Parts) -> list[str]:
    """Return what a reader should know about how verl carries out this plan."""
    found = []
    if parts.reference and not parts.reference_in_actor:
        found.append(
            "verl keeps the reference's weights in host memory and streams them in (CPUOffloadPolicy), whatever is set."
        )
    if parts.reward:
        found.append(
            "verl serves the reward model with vLLM on "
            f"{server_tp(parts.reward)} GPUs a server, not as a pass of the training engine."
        )
    if request.get("data.val") is None:
        found.append("There is no validation data: eight training rows stand in and no test runs.")
    if mode_of(plan) == ONE_STEP_OFF:
        found.append(
            "Samples are one weight version old when they are trained on; old log-probs are recomputed "
            "(`algorithm.rollout_correction.bypass_mode=False`)."
        )
    return found
