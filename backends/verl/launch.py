"""The launch folder of a plan: job script, driver, preflight, settings, README."""

from __future__ import annotations

import json
import math
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from backends.site import Site
from backends.verl.capabilities import COLOCATE_ASYNC, MEGATRON, ONE_STEP_OFF, SEPARATE_ASYNC, VERSION
from backends.verl.hydra import Override
from backends.verl.overrides import overrides_of
from backends.verl.preflight import preflight_facts
from backends.verl.request import Request, request_of
from backends.verl.roles import Parts, parts_of
from backends.verl.run import engine_of, mode_of, run_of, staleness_of
from backends.verl.settings import REWARD, ROLLOUT, server_tp
from rpegc.emit import EmittedFile, quote_bash, slug
from rpegc.plan import Plan
from rpegc.units import GIB, format_seconds

FOLDER = "launch"
MODULES = {
    "sync": "verl.trainer.main_ppo",
    COLOCATE_ASYNC: "verl.trainer.main_ppo",
    SEPARATE_ASYNC: "verl.trainer.main_ppo",
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

CPUS_PER_GPU = 3
"""CPUs of a placement bundle (ResourcePoolManager.max_colocate_count in verl/single_controller/ray/base.py)."""
DATA_QUEUE_UNITS, DATA_QUEUE_CONTROLLERS = 8, 1
"""Actors of TransferQueue with a CPU each: storage units, dealt out over the nodes
(SimpleStorage.num_data_storage_units in verl/trainer/config/transfer_queue), and their controller."""
ONE_STEP_DRIVER_CPUS = 10
"""Of the driver's actor in verl/experimental/one_step_off_policy/main_ppo.py."""
FREE_CPUS = 1
"""Ray places an actor that holds no CPU only where one is free (servers, agent loops, reward workers)."""

DEFAULT_SERVER_MEMORY_FRACTION = 0.5
"""What verl gives a reward model's server unless told otherwise (verl/trainer/config/reward/reward.yaml)."""

MEMORY_SLACK = 1.1
"""Host memory that a job may ask for, as a share of what the plan expects (assumed)."""

STATIC = ("preflight.py", "parquet_columns.py", "wait_for_gpus.py")


def launch_files(plan: Plan, site: Site) -> dict[str, EmittedFile]:
    """Return the files of `launch/` for a checked plan; InputError for a text that they cannot carry."""
    request, parts = request_of(plan), parts_of(plan)
    overrides = overrides_of(run_of(plan, site.cpus_per_node))
    values = template_values(plan, site, request, parts) | {"notes": notes(plan, request, parts, overrides)}
    lines = "".join(f"{override.line}\n" for override in overrides)
    facts = preflight_facts(plan, site, request, lines, object_store_bytes(plan, request))
    contents = {
        "verl_overrides.txt": lines,
        "preflight.json": json.dumps(facts, indent=2, ensure_ascii=False) + "\n",
    }
    names = [
        "submit.sbatch",
        "train.sh",
        "ray_node.sh",
        "preflight.sh",
        "environment.sh",
        "folders.sh",
        "README.md",
        *STATIC,
    ]
    names += ["no_reward.py"] * (parts.teacher is not None and not request.judged)
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
    steps = int(request.get("training.total_steps", 0))
    seconds = plan.period_interval_s[1] * steps
    limit = min(seconds * SLACK + START_S, site.maximum_time_s) if seconds else site.maximum_time_s
    return {
        "title": slug(plan.name),
        "job_name": slug(plan.name),
        "version": VERSION,
        "site": site,
        "folder": FOLDER,
        "module": MODULES[mode_of(plan)],
        "megatron": engine_of(plan) == MEGATRON,
        "nodes": plan.devices.nodes,
        "gpus_per_node": plan.devices.gpus_per_node,
        "gpus": plan.devices.nodes * plan.devices.gpus_per_node,
        "time_limit": slurm_time(limit),
        "time_bounded": bool(seconds) and seconds * SLACK + START_S > site.maximum_time_s,
        "expected": format_seconds(plan.period_s * steps) if steps else "",
        "slow_end": format_seconds(seconds) if steps else "",
        "saves": request.get("training.save_every") is not None,
        "object_store_bytes": object_store_bytes(plan, request),
        "cpus_needed": cpus_needed(plan)[0],
        "cpus_reason": cpus_needed(plan)[1],
        "host_gib": math.ceil(max((p.host_total_bytes for p in plan.memory), default=0.0) * MEMORY_SLACK / GIB),
    }


def cpus_needed(plan: Plan) -> tuple[int, str]:
    """Return the CPUs of a node without which Ray would wait for ever to place verl's actors, and how they add up."""
    gpus, nodes = plan.devices.gpus_per_node, plan.devices.nodes
    if mode_of(plan) == ONE_STEP_OFF:
        others, what = ONE_STEP_DRIVER_CPUS, "driver"
    else:
        others = math.ceil(DATA_QUEUE_UNITS / nodes) + DATA_QUEUE_CONTROLLERS
        what = "data queue"
    total = CPUS_PER_GPU * gpus + others + FREE_CPUS
    return total, f"{CPUS_PER_GPU} for each GPU, {others} for its {what}, {FREE_CPUS} free"


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


def notes(plan: Plan, request: Request, parts: Parts, overrides: tuple[Override, ...]) -> list[str]:
    """Return what a reader should know about how verl carries out this plan."""
    values = {override.key: override.value for override in overrides}
    sleeps = " and gives it back while others train" if values[f"{ROLLOUT}.free_cache_engine"] else ""
    found = [
        "The predicted step contains neither tests (`test_freq`) nor checkpoints (`save_freq`), nor the start.",
        f"vLLM takes {values[f'{ROLLOUT}.gpu_memory_utilization']} of the memory of each GPU of the rollout"
        f"{sleeps} (`fix: {{{parts.rollout.name}: {{memory_fraction: ...}}}}` changes it).",
    ]
    if engine_of(plan) == MEGATRON:
        found.append(
            "verl's Megatron engine trains (`model_engine=megatron`), with models converted by Megatron-Bridge; "
            "`engine: fsdp` in the pipeline plans for FSDP2 instead."
        )
    elif parts.reference and not parts.reference_in_actor:
        found.append(
            "verl keeps the reference's weights in host memory and streams them in (CPUOffloadPolicy), whatever is set."
        )
    if parts.reward:
        share = f"{REWARD}.rollout.gpu_memory_utilization"
        found.append(
            f"The reward model is served by vLLM on {server_tp(parts.reward)} GPUs a server, not run by the training "
            f"engine; it takes {values.get(share, DEFAULT_SERVER_MEMORY_FRACTION)} of their memory "
            f"(`target_overrides: {{{share}: ...}}` changes it)."
        )
    if parts.teacher:
        found.append(
            f"The teacher is served by vLLM on {server_tp(parts.teacher)} GPUs a server, on GPUs of its own, and "
            "scores each response as soon as it is done."
        )
    if request.samples_dynamically:
        found.append(
            "Groups whose responses are all right or all wrong are replaced (`algorithm.filter_groups`)"
            + (
                ": they go by `acc`, which is the score of a reward function that returns a number; one that returns "
                "a dict must have it."
                if request.overlong
                else "."
            )
        )
    if request.before_v1:
        found.append(
            "verl's V1 trainer makes no greedy baselines: this runs on the trainer before it (`use_v1=False`)."
        )
    if request.get("data.val") is None:
        found.append("There is no validation data: a few training rows stand in and no test runs.")
    if mode_of(plan) in (COLOCATE_ASYNC, SEPARATE_ASYNC):
        found.append(
            f"Samples are at most {staleness_of(plan)} weight versions old when they are trained on: the trainer waits "
            "for older prompts to end (`trainer.v1.sampler.max_off_policy_strategy=wait`). In these modes "
            "`timing_s/gen` is the wait for samples, not the time of generation."
        )
    if mode_of(plan) == ONE_STEP_OFF:
        found.append(
            "Samples are one weight version old when they are trained on; old log-probs are recomputed "
            "(`algorithm.rollout_correction.bypass_mode=False`)."
        )
    return found
