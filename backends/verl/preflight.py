"""What the emitted preflight compares a node, and the data, with."""

from __future__ import annotations

from typing import Any

from backends.preflight import input_files, missing_of
from backends.site import Site
from backends.verl.capabilities import APART, MEGATRON, VERSION
from backends.verl.request import Request
from backends.verl.run import engine_of, mode_of
from rpegc.plan import Plan

VERSIONS = {"verl": f"=={VERSION}", "vllm": ">=0.18", "ray": ">=2.41", "TransferQueue": ">=0.1.10"}
"""verl/third_party/vllm/__init__.py and verl's own requirements."""

MEGATRON_VERSIONS = {"megatron-core": ">=0.15", "megatron-bridge": "==0.5.2", "transformer-engine": ">=2.0"}
"""Beside them with `model_engine=megatron`: verl 0.9.1's extra `megatron` pins Megatron-Bridge and needs the other two
(their least versions are assumed: those that Megatron-Bridge of that time builds on)."""

KNOWN_SOURCES: dict[str, Any] = {
    "names": [
        "openai/gsm8k",
        "lighteval/MATH",
        "DigitalLearningGmbH/MATH-lighteval",
        "HuggingFaceH4/MATH-500",
        "math_dapo",
        "math",
        "math_dapo_reasoning",
        "numina_aops_forum",
        "numina_synthetic_math",
        "numina_amc_aime",
        "numina_synthetic_amc",
        "numina_cn_k12",
        "numina_olympiads",
        "codecontests",
        "apps",
        "codeforces",
        "taco",
        "hiyouga/geometry3k",
        "searchR1_nq",
        "searchR1_triviaqa",
        "searchR1_popqa",
        "searchR1_hotpotqa",
        "searchR1_2wikimultihopqa",
        "searchR1_musique",
        "searchR1_bamboogle",
    ],
    "start": "aime",
}
"""Values of `data_source` that verl's own verifier knows, and how others may start; it raises NotImplementedError for
the rest (verl/utils/reward_score/__init__.py)."""

OWN_DATASET, OWN_JUDGE = "data.custom_cls", "reward.reward_manager"
"""Settings with which a user puts code in the place of what reads the answer, and of what reads `data_source`."""


def preflight_facts(plan: Plan, site: Site, request: Request, lines: str, store_bytes: int) -> dict[str, Any]:
    """Return the contents of `preflight.json`; `lines` are the overrides, `store_bytes` the size of Ray's store."""
    versions, modules = dict(VERSIONS), ["tensordict"]
    if request.lora_rank:
        versions["peft"] = ">=0"
    if engine_of(plan) == MEGATRON:
        versions |= MEGATRON_VERSIONS
    if mode_of(plan) in APART:
        modules.append("cupy")  # the NCCL checkpoint engine stages its buckets with it
    function = request.get("reward.function")
    path, _, name = str(function or "").rpartition(":")
    return {
        "tool": "verl",
        "commands": ["ray"],
        "missing": missing_of({"verl_overrides.txt": lines}),
        "versions": versions,
        "modules": modules,
        "gpus_per_node": plan.devices.gpus_per_node,
        "files": input_files(request, path),
        "data": _columns(request),
        "reward": {"path": path, "name": name} if function else None,
        "sources": KNOWN_SOURCES if _needs_known_sources(request) else None,
        # Other variables may be better known to whoever set them before: a container hook, the user.
        "environment": {"NCCL_NET": site.expected_network} if site.expected_network else {},
        "object_store_bytes": store_bytes,
    }


def _columns(request: Request) -> list[dict[str, Any]]:
    # Each entry lists columns of which one must be there: data in verl's own form has no answer column.
    columns = [[request.get("data.prompt_key", "prompt")]]
    if not _overridden(request, OWN_DATASET):
        answer = request.get("data.answer_key")
        columns.append([*([answer] if answer is not None else []), "reward_model"])
    if _needs_known_sources(request):
        columns.append(["data_source"])
    paths = [request.get(f"data.{which}") for which in ("train", "val")]
    return [{"path": path, "columns": columns} for path in paths if path and "://" not in str(path)]


def _needs_known_sources(request: Request) -> bool:
    """Whether verl's own verifier judges, which goes by the column `data_source` of the data."""
    own = request.get("reward") is not None and request.get("reward.function") is None
    return own and not _overridden(request, OWN_DATASET) and not _overridden(request, OWN_JUDGE)


def _overridden(request: Request, section: str) -> bool:
    keys = (str(key).lstrip("+") for key in request.get("target_overrides", {}))
    return any(f"{key}.".startswith(f"{section}.") for key in keys)
