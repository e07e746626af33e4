"""What `rpegc estimate` is given, by the form of the file: a compiled plan, a launch script, or a table of launches."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpegc.errors import InputError
from rpegc.estimate import Estimate, estimate, given_by_launch, given_by_plan, read_text
from rpegc.plan import read_plan
from rpegc.report.verdict import Verdict

MOST_ROWS = 10_000

COLUMNS = {
    "model": "actor_rollout_ref.model.path",
    "algorithm": "algorithm.adv_estimator",
    "nnodes": "trainer.nnodes",
    "gpus_per_node": "trainer.n_gpus_per_node",
    "train_batch_size": "data.train_batch_size",
    "max_prompt_length": "data.max_prompt_length",
    "max_response_length": "data.max_response_length",
    "ppo_mini_batch_size": "actor_rollout_ref.actor.ppo_mini_batch_size",
    "ppo_micro_batch_size_per_gpu": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "use_dynamic_bsz": "actor_rollout_ref.actor.use_dynamic_bsz",
    "ppo_max_token_len_per_gpu": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "rollout_n": "actor_rollout_ref.rollout.n",
    "train_tp": "actor_rollout_ref.actor.megatron.tensor_model_parallel_size",
    "train_pp": "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size",
    "train_vpp": "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size",
    "train_cp": "actor_rollout_ref.actor.megatron.context_parallel_size",
    "train_ep": "actor_rollout_ref.actor.megatron.expert_model_parallel_size",
    "train_etp": "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size",
    "ulysses_sp": "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "fsdp_size": "actor_rollout_ref.actor.fsdp_config.fsdp_size",
    "rollout_engine": "actor_rollout_ref.rollout.name",
    "rollout_tp": "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "rollout_dp": "actor_rollout_ref.rollout.data_parallel_size",
    "rollout_ep": "actor_rollout_ref.rollout.expert_parallel_size",
    "gpu_memory_utilization": "actor_rollout_ref.rollout.gpu_memory_utilization",
    "max_num_batched_tokens": "actor_rollout_ref.rollout.max_num_batched_tokens",
    "max_num_seqs": "actor_rollout_ref.rollout.max_num_seqs",
    "free_cache_engine": "actor_rollout_ref.rollout.free_cache_engine",
    "log_prob_micro_per_gpu": "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "log_prob_max_token_len": "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "grad_ckpt": "actor_rollout_ref.model.enable_gradient_checkpointing",
    "act_offload": "actor_rollout_ref.model.enable_activation_offload",
    "lora_rank": "actor_rollout_ref.model.lora_rank",
    "remove_padding": "actor_rollout_ref.model.use_remove_padding",
    "critic_model": "critic.model.path",
    "hybrid_engine": "actor_rollout_ref.hybrid_engine",
    "rollout_nnodes": "rollout.nnodes",
    "rollout_gpus_per_node": "rollout.n_gpus_per_node",
}
"""Columns of a table of launches that stand for settings of verl; a column `overrides` holds any others."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Estimates in the order of the file, and (name, reason) of what could not be priced."""

    estimates: tuple[Estimate, ...]
    undecided: tuple[tuple[str, str], ...] = ()


def estimates(path: Path, hardware: str | None, model: str | None) -> Estimates:
    """Price what a file holds. Raises InputError for what cannot be read, or for a script without a machine."""
    if path.is_dir() or path.suffix == ".json":
        return Estimates((estimate(given_by_plan(read_plan(path))),))
    text = read_text(path)
    if path.suffix == ".csv":
        return _table(text, path, hardware, model)
    if hardware is None:
        raise InputError("a launch script does not name its machine", None, "give it with --hardware, such as h100-dgx")
    return Estimates((estimate(given_by_launch(text, path.name, hardware, model)),))


def _table(text: str, path: Path, hardware: str | None, model: str | None) -> Estimates:
    """Price the rows of a table; `hardware` and `model` are for rows that do not name their own."""
    try:
        rows = list(csv.DictReader(text.splitlines(), strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: not a table ({error})") from None
    if len(rows) > MOST_ROWS:
        raise InputError(f"{path}: more than {MOST_ROWS} rows")
    done, undecided = [], []
    for number, row in enumerate(rows, start=1):
        name = row.get("row_id") or row.get("script") or f"row {number}"
        machine = row.get("hardware") or hardware
        try:
            if row.get("undecided"):
                raise InputError(str(row["undecided"]))
            if machine is None:
                raise InputError("the row names no `hardware`", None)
            own = row.get("model") if "/" in (row.get("model") or "") and row.get("overrides") else None
            done.append(estimate(given_by_launch(_overrides(row), name, machine, own or model)))
        except InputError as problem:
            undecided.append((name, str(problem).splitlines()[0]))
    return Estimates(tuple(done), tuple(undecided))


def _overrides(row: dict[str, str]) -> str:
    """Return a row's settings as a list of overrides, which quotes everything that the reader would expand."""
    engine = "megatron" if row.get("engine") == "megatron" else None
    part = "megatron" if engine else "fsdp_config"
    offloads = {
        "offload_param": f"actor_rollout_ref.actor.{part}.param_offload",
        "offload_opt": f"actor_rollout_ref.actor.{part}.optimizer_offload",
        "offload_ref_param": f"actor_rollout_ref.ref.{part}.param_offload",
    }
    columns = {name: key for name, key in (COLUMNS | offloads).items() if row.get(name)}
    settings = [f"{key}={_quoted(row[name])}" for name, key in columns.items() if not row.get("overrides")]
    if row.get("engine") and not row.get("overrides"):
        settings.append(f"actor_rollout_ref.actor.strategy={_quoted(row['engine'])}")
    return "\n".join([*settings, row.get("overrides") or ""])


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "").replace("\n", " ") + "'"


def judged(found: Estimates) -> tuple[Verdict, ...]:
    """Return what is shown of the estimates."""
    shown = tuple(
        Verdict(
            one.name, "", one.fits, one.where, one.phase, one.term, one.total_bytes, one.capacity_bytes,
            one.fit_probability, tuple(one.stages.items()), one.memory, one.ignored, one.assumed,
        )
        for one in found.estimates
    )  # fmt: skip
    return shown + tuple(Verdict(name, reason) for name, reason in found.undecided)


def to_json(found: Estimates) -> str:
    """Return estimates and what was not decided as JSON: bytes and seconds (null: the stage never ends)."""
    document = {
        "estimates": [_document(one) for one in found.estimates],
        "undecided": [{"name": name, "reason": reason} for name, reason in found.undecided],
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _document(one: Estimate) -> dict[str, Any]:
    return {
        "name": one.name,
        "fits": one.fits,
        "where": one.where,
        "stage": one.phase,
        "term": one.term,
        "total_bytes": one.total_bytes,
        "capacity_bytes": one.capacity_bytes,
        "margin_bytes": one.margin_bytes,
        "fit_probability": one.fit_probability,
        "stages": [
            {"name": name, "seconds": value if value < float("inf") else None} for name, value in one.stages.items()
        ],
        "memory": [
            {
                "stage": phase.phase,
                "device_bytes": phase.device_bytes,
                "device_total_bytes": phase.device_total_bytes,
                "fit_probability": phase.fit_probability,
                "host_bytes": phase.host_bytes,
                "host_total_bytes": phase.host_total_bytes,
            }
            for phase in one.memory
        ],
        "ignored": list(one.ignored),
        "assumed": list(one.assumed),
    }
