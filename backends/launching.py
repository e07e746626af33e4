"""What the launch folders of all backends share: templates, job times, the sizes that a node must have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from backends.request import PipelineRequest
from backends.site import Site
from rpegc.emit import EmittedFile, quote_bash, slug
from rpegc.plan import Plan
from rpegc.units import GIB, format_seconds

FOLDER = "launch"

START_S = 1800.0
"""Seconds granted for loading weights, compiling graphs and the first test (assumed)."""
SLACK = 1.1
"""Share of the expected time that the job may overrun, for tests and checkpoints (assumed)."""
MEMORY_SLACK = 1.1
"""Host memory that a job may ask for, as a share of what the plan expects (assumed)."""

BYTES_PER_TOKEN = 64
"""What a step's batch keeps per padded token: eight fields of 8 bytes (ids, masks, log-probs, values, advantages)."""
SMALLEST_STORE_BYTES = int(4 * GIB)
LARGEST_STORE_BYTES = int(64 * GIB)


def template_environment(package: str) -> Environment:
    """Return the templates of a backend, and beside them those that all share.

    An undefined name is an error, `bash` quotes a word for the shell.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates"), PackageLoader("backends", "templates")]),
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


def rendered(package: str, names: Iterable[str], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of templates by the name of the file that each becomes (`NAME` or `NAME=TEMPLATE`)."""
    templates = template_environment(package)
    pairs = (name.partition("=")[::2] for name in names)
    return {name: templates.get_template(f"{template or name}.j2").render(values) for name, template in pairs}


def folder_files(contents: Mapping[str, str]) -> dict[str, EmittedFile]:
    """Return the texts as files of `launch/`; scripts are executable."""
    return {
        f"{FOLDER}/{name}": EmittedFile(contents[name].encode(), name.endswith((".sh", ".sbatch")))
        for name in sorted(contents)
    }


def job_values(plan: Plan, site: Site, request: PipelineRequest) -> dict[str, Any]:
    """Return what every template may name: the job's name, size, time and memory."""
    steps = int(request.get("training.total_steps", 0))
    seconds = plan.period_interval_s[1] * steps
    limit = min(seconds * SLACK + START_S, site.maximum_time_s) if seconds else site.maximum_time_s
    return {
        "title": slug(plan.name),
        "job_name": slug(plan.name),
        "site": site,
        "folder": FOLDER,
        "nodes": plan.devices.nodes,
        "gpus_per_node": plan.devices.gpus_per_node,
        "gpus": plan.devices.nodes * plan.devices.gpus_per_node,
        "time_limit": slurm_time(limit),
        "time_bounded": bool(seconds) and seconds * SLACK + START_S > site.maximum_time_s,
        "expected": format_seconds(plan.period_s * steps) if steps else "",
        "slow_end": format_seconds(seconds) if steps else "",
        "saves": request.get("training.save_every") is not None,
        "host_gib": math.ceil(max((p.host_total_bytes for p in plan.memory), default=0.0) * MEMORY_SLACK / GIB),
    }


def slurm_time(seconds: float) -> str:
    """Print seconds as SLURM's HH:MM:SS, rounded up to a minute."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def object_store_bytes(plan: Plan, request: PipelineRequest) -> int:
    """Return the size of Ray's object store on a node: what the plan's host memory sets aside, else an estimate."""
    planned = [bytes_ for phase in plan.memory for term, bytes_ in phase.host_bytes.items() if "object_store" in term]
    if planned:
        return int(max(planned))
    tokens = request.sequences * (request.max_prompt_tokens + request.max_response_tokens)
    return max(SMALLEST_STORE_BYTES, min(LARGEST_STORE_BYTES, tokens * BYTES_PER_TOKEN))
