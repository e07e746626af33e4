"""What the emitted preflight compares a node, and the data, with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backends.deepspeed.capabilities import SERVER, TRL_VERSION, VERSION
from backends.deepspeed.run import Run
from backends.preflight import input_files, missing_of
from backends.site import Site
from rpegc.plan import Plan

VERSIONS = {
    "deepspeed": f"=={VERSION}",
    "trl": f"=={TRL_VERSION}",
    "transformers": ">=5.2",
    "accelerate": ">=1.10.1",
    "datasets": ">=4.7",
    "vllm": ">=0.22",
}
"""Requirements of TRL 1.16.0 (its metadata, and trl/import_utils.py for vLLM)."""


def preflight_facts(plan: Plan, site: Site, run: Run, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the contents of `preflight.json`; `texts` are the emitted settings, whose gaps it names."""
    versions, modules, commands = dict(VERSIONS), [], ["python3"]
    if run.request.lora_rank:
        versions["peft"] = ">=0.17"
    if run.request.reward_function is None:
        modules.append("math_verify")  # what trl.rewards.accuracy_reward parses answers with
    if run.parts.actor.layout.offload_optimizer:
        commands += ["ninja", "g++"]  # DeepSpeed compiles its CPU Adam when it is first used
    if run.mode == SERVER:
        commands.append("vllm")
    path, name = run.request.reward_function or ("", "")
    return {
        "tool": "TRL",
        "commands": commands,
        "missing": missing_of(texts),
        "versions": versions,
        "modules": modules,
        "gpus_per_node": plan.devices.gpus_per_node,
        "files": input_files(run.request, path),
        "data": list(_columns(run)),
        "reward": {"path": path, "name": name} if path else None,
        "sources": None,
        "environment": {"NCCL_NET": site.expected_network} if site.expected_network else {},
        "object_store_bytes": 0,
    }


def _columns(run: Run) -> Iterator[dict[str, Any]]:
    # Each entry lists columns of which one must be there: data in verl's own form has no answer column.
    answer = run.request.get("data.answer_key")
    columns = [
        [run.request.get("data.prompt_key", "prompt")],
        [*([answer] if answer is not None else []), "reward_model"],
    ]
    for which in ("train", "val"):
        path = run.request.get(f"data.{which}")
        if path:
            yield {"path": path, "columns": columns}
