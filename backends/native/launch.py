"""The launch folder of a plan: a script for one node, one for SLURM, and a README."""

from __future__ import annotations

from typing import Any

from backends.launching import template_environment
from backends.native.capabilities import VERSION
from backends.site import Site
from rpegc.emit import EmittedFile, slug
from rpegc.plan import Plan
from rpegc.units import format_seconds

FOLDER = "launch"
START_S = 900.0
"""Seconds granted for loading weights (assumed)."""
SLACK = 1.1
"""Share of the expected time that the job may overrun, for checkpoints (assumed)."""
GRACE_S = 600
"""Seconds before the end of a job in which the engine finishes its step and writes a checkpoint (assumed)."""


def launch_files(plan: Plan, site: Site) -> dict[str, EmittedFile]:
    """Return the files of `launch/` for a checked plan."""
    environment = template_environment("backends.native")
    values = template_values(plan, site)
    names = ["submit.sbatch", "processes.sh", "environment.sh", "README.md"]
    names += ["run.sh"] * (plan.devices.nodes == 1)
    sources = dict.fromkeys(names, "") | ({"submit.sbatch": "pools."} if plan.devices.pools else {})
    return {
        f"{FOLDER}/{name}": EmittedFile(
            environment.get_template(f"{sources[name]}{name}.j2").render(values).encode(),
            name.endswith((".sh", ".sbatch")),
        )
        for name in sorted(names)
    }


def template_values(plan: Plan, site: Site) -> dict[str, Any]:
    """Return what the templates may name."""
    steps = plan.total_steps or 0
    seconds = plan.period_interval_s[1] * steps
    limit = min(seconds * SLACK + START_S, site.maximum_time_s) if seconds else site.maximum_time_s
    minutes = int(-(-limit // 60))
    return {
        "title": slug(plan.name),
        "version": VERSION,
        "site": site,
        "nodes": plan.devices.nodes,
        "gpus_per_node": plan.devices.gpus_per_node,
        "gpus": plan.devices.gpus,
        "time_limit": f"{minutes // 60:02d}:{minutes % 60:02d}:00",
        "grace_s": GRACE_S,
        "steps": steps,
        "pools": [
            {
                "name": pool.name,
                "hardware": pool.hardware,
                "nodes": pool.nodes,
                "gpus_per_node": pool.gpus_per_node,
                "first_node": sum(other.nodes for other in plan.devices.pools[:place]),
                "partition": plan.pipeline["cluster"]["pools"][pool.name]["partition"],
            }
            for place, pool in enumerate(plan.devices.pools)
        ],
        "expected": format_seconds(plan.period_s * steps) if steps else "",
    }
