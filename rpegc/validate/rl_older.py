"""PPO systems of 2023 and 2024 that generate without CUDA graphs: engine classes of their own.

A step of token t costs such an engine a time per layer, whatever the batch: launches, and the synchronisation of
tensor-parallel ranks. Training under ZeRO-3 costs what gathering the weights does, whatever the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import EngineLayout, FloatArray, IntArray, MeshClass, ShardedLayout
from rpegc.validate.facts import machine
from rpegc.validate.published_models import published_model
from rpegc.validate.refit import Constant, Problem
from rpegc.validate.rl_runs import Run, generation_of, pass_of
from rpegc.validate.table import Folder, Row, Skipped, SkipRow, number, whole

FIGURE_FILES = r"rl_real\w*\.csv"
TABLE_FILES = r"rl_openrlhf\w*\.csv"
COLUMNS = ("framework", "model", "critic_model", "n_gpus", "max_response_len", "rollout_batch_seqs", "step_time_s")
FIGURE_GPU = "h100-dgx"
"""The figure of ReaL (arXiv 2406.14088) does not say which GPU; the paper's cluster has H100 nodes."""

TABLE_GPU = "a100-80g"
"""A800: an A100 with less NVLink bandwidth, which the source does not print."""

_TENSOR = ((10, 2), (20, 2), (40, 4), (100, 8))
_SINGLE_BILLIONS = 20.0
"""Up to this size a searched plan (ReaL) generates without tensor parallelism."""

_FEW_GPUS = 16
"""With fewer GPUs than this, four models leave room for proportionally smaller micro-batches."""

CLASSES: Mapping[str, tuple[str, bool]] = {
    "DeepSpeedChat": ("deepspeed-chat", True),
    "OpenRLHF": ("openrlhf", True),
    "OpenRLHF(ray)": ("openrlhf", True),
    "OpenRLHF(ray+vllm)": ("openrlhf", True),
    "ReaL-Heuristic": ("real-heuristic", False),
    "ReaL": ("real", False),
}
"""Class of a system, and whether it shards with ZeRO-3 (else with tensor parallelism)."""

SHIPPED: Mapping[str, float] = {
    "deepspeed-chat layer": 1.39e-3,
    "deepspeed-chat fixed": 5.2,
    "deepspeed-chat gather": 2.08,
    "openrlhf layer": 2.19e-3,
    "openrlhf fixed": 8.0,
    "openrlhf gather": 2.41,
    "openrlhf vllm": 0.4e-3,
    "real-heuristic layer": 1.26e-3,
    "real-heuristic fixed": 14.4,
    "real-heuristic pass": 1.03,
    "real layer": 1.18e-3,
    "real fixed": 11.7,
    "real pass": 0.94,
    "all single": 0.457,
    "all update": 1.9,
}
"""Seconds per layer and token (`layer`, `vllm`), per step (`fixed`), per 1e9 parameters trained (`gather`); factors on
passes (`pass`, `update`), and on `layer` without tensor parallelism (`single`)."""

_PRIORS: Mapping[str, tuple[float, float]] = {
    "layer": (1.3e-3, 0.4),
    "fixed": (10.0, 0.7),
    "gather": (2.0, 0.5),
    "vllm": (0.3e-3, 0.5),
    "pass": (1.0, 0.4),
    "single": (0.5, 0.3),
    "update": (1.8, 0.3),
}
_SOFT_SCALE = 0.15


@dataclass(frozen=True, slots=True)
class OlderCase:
    """One measured time: `own` seconds of decoding, `layer_steps` layers times steps, `passes` of training seconds.

    `billions` trained. `part` is "step", "generation" or "training".
    """

    row_id: str
    source: str
    model: str
    system: str
    part: str
    engine: str
    gpus: int
    single: bool
    own: float
    layer_steps: float
    passes: float
    billions: float
    seconds: float


def older_cases(folder: Folder) -> tuple[list[OlderCase], list[Skipped]]:
    """Return the rows of both tables, those with two timers as two cases."""
    cases: list[OlderCase] = []
    skipped: list[Skipped] = []
    for files, read in ((FIGURE_FILES, _figure_cases), (TABLE_FILES, _table_cases)):
        for name in folder.names(files):
            for row in folder.rows(name, COLUMNS):
                try:
                    cases += read(row)
                except SkipRow as reason:
                    skipped.append(Skipped(row["row_id"], str(reason)))
    return cases, skipped


def _run(row: Row, printed: str, gpu: str, gpus: int, tp: int, zero3: bool, batch: int, micro_batch: int) -> Run:
    model, architecture = published_model(printed)
    hardware = machine(gpu)
    local = min(gpus, hardware.gpus_per_node)
    if gpus % tp or gpus % local:
        raise SkipRow(f"{gpus} GPUs do not tile")
    mesh = MeshClass(gpus // local, local)
    sharded = (
        ShardedLayout(dp=gpus, zero=3, shard_size=gpus, micro_batch=micro_batch, recompute="full")
        if zero3
        else ShardedLayout(
            dp=gpus // tp, tp=tp, zero=1, sequence_parallel=True, micro_batch=micro_batch, recompute="full"
        )
    )
    engine = EngineLayout(replicas=gpus // tp, tp=tp, max_sequences=1024, memory_fraction=0.95)
    return Run(
        row_id=row["row_id"],
        source=row["source"],
        origin=row["framework"],
        model=model,
        gpu=gpu,
        framework="deepspeed" if zero3 else "real",
        engine_class="fsdp" if zero3 else "megatron",
        architecture=architecture,
        machine=hardware,
        prompts=batch,
        samples=1,
        minibatches=max(batch // whole(row, "train_batch_seqs", batch), 1) if row["gen_time_s"] else 8,
        prompt=Lengths.fixed(whole(row, "max_prompt_len")),
        response=Lengths.fixed(whole(row, "max_response_len")),
        train_mesh=mesh,
        train_layout=sharded,
        forward_layout=sharded,
        generation_mesh=mesh,
        generation_layout=engine,
        engine_flags=frozenset(),
    )


def _figure_cases(row: Row) -> list[OlderCase]:
    if row["framework"] not in CLASSES:
        raise SkipRow(f"unknown system {row['framework']}")
    system, zero3 = CLASSES[row["framework"]]
    gpus, batch = whole(row, "n_gpus"), whole(row, "rollout_batch_seqs")
    lengths = whole(row, "max_prompt_len"), whole(row, "max_response_len")
    actor, architecture = published_model(row["model"])
    critic, second = published_model(row["critic_model"])
    own, passes = _figure_price(row["model"], row["critic_model"], gpus, zero3, batch, *lengths)
    return [
        OlderCase(
            row["row_id"],
            row["source"],
            f"{actor} + {critic}",
            system,
            "step",
            "layer",
            gpus,
            system == "real" and architecture.parameters < 1e9 * _SINGLE_BILLIONS,
            own,
            float(lengths[1] * architecture.layers),
            passes,
            (architecture.parameters + second.parameters) / 1e9,
            number(row, "step_time_s"),
        )
    ]


@cache
def _figure_price(
    actor: str, critic: str, gpus: int, zero3: bool, batch: int, prompt: int, response: int
) -> tuple[float, float]:
    """Return seconds of decoding, and of the passes before any factor: systems of the figure share their set-ups."""
    stated = {"max_prompt_len": str(prompt), "max_response_len": str(response)}
    row = {"row_id": "", "source": "", "framework": "", "gen_time_s": "", **stated}
    billions = published_model(actor)[1].parameters / 1e9
    tp = next(tp for limit, tp in _TENSOR if billions < limit)
    first, second = (_run(row, name, FIGURE_GPU, gpus, tp, zero3, batch, 1) for name in (actor, critic))
    passes = [pass_of(first, Op.TRAIN), pass_of(second, Op.TRAIN, "scalar"), pass_of(first, Op.FORWARD)]
    passes += 2 * [pass_of(second, Op.FORWARD, "scalar")]
    return generation_of(first).own, sum(one.scaled for one in passes)


def _table_cases(row: Row) -> list[OlderCase]:
    """Return generation and training: each rank of the actor generates its micro-batch, round after round."""
    split = [int(part) for part in re.findall(r"\d+", row["placement"])]
    if not row["gen_time_s"] or not split:
        raise SkipRow("lengths are not stated beside the table")
    if row["framework"] not in CLASSES:
        raise SkipRow(f"unknown system {row['framework']}")
    system = CLASSES[row["framework"]][0]
    together = len(split) == 1
    actor_gpus, critic_gpus = (split[0], split[0]) if together else (split[2], split[3])
    engine_gpus = split[4] if len(split) > 4 else actor_gpus
    sequences, response = whole(row, "rollout_batch_seqs"), whole(row, "max_response_len")
    each = whole(row, "logprob_mbs", 4) * actor_gpus
    rounds = -(-sequences // each)
    billions = published_model(row["model"])[1].parameters / 1e9
    tp = engine_gpus if billions > 40 else 1
    engine = _run(row, row["model"], TABLE_GPU, engine_gpus, tp, True, each, 1)
    micro = whole(row, "train_mbs", 1)
    updates = [
        pass_of(_run(row, row["model"], TABLE_GPU, gpus, 1, True, sequences, micro), Op.TRAIN, head).scaled
        for gpus, head in ((actor_gpus, "logits"), (critic_gpus, "scalar"))
    ]
    generation = OlderCase(
        row_id=row["row_id"] + " generation",
        source=row["source"],
        model=engine.model,
        system=system,
        part="generation",
        engine="vllm" if row["gen_backend"] == "vLLM" else "layer",
        gpus=_FEW_GPUS,
        single=False,
        own=rounds * generation_of(engine).own,
        layer_steps=float(rounds * response * engine.architecture.layers),
        passes=0.0,
        billions=0.0,
        seconds=number(row, "gen_time_s"),
    )
    training = replace(
        generation,
        row_id=row["row_id"] + " training",
        part="training",
        own=0.0,
        layer_steps=0.0,
        passes=sum(updates) if together else max(updates),
        seconds=number(row, "train_total_s"),
    )
    return [generation, training]


def older_seconds(case: OlderCase, value: Mapping[str, float]) -> float:
    """Return the seconds of a case: decoding, its engine's time per layer, and training in the system's way."""
    if case.part == "training":
        return value["all update"] * case.passes
    few = max(_FEW_GPUS / case.gpus, 1.0)
    layer = value[f"{case.system} {case.engine}"] * (value["all single"] if case.single else 1.0)
    if case.system == "openrlhf":  # every role has GPUs of its own: with few, one or two each
        layer *= few
    seconds = case.own + layer * case.layer_steps
    if case.part == "generation":
        return seconds
    if f"{case.system} gather" in value:
        seconds += value[f"{case.system} gather"] * case.billions * few ** (2 if case.system == "openrlhf" else 1)
    else:
        seconds += value[f"{case.system} pass"] * case.passes
    return seconds + value[f"{case.system} fixed"]


def older_problem(cases: list[OlderCase]) -> Problem:
    """Return the problem: two to four constants a system, from priors that systems share."""
    constants = tuple(Constant(name, start, *_PRIORS[name.split(" ")[1]]) for name, start in SHIPPED.items())

    def affects(name: str, case: OlderCase) -> bool:
        owner, what = name.split(" ")
        if owner == "all":
            return case.single if what == "single" else case.part == "training"
        engine = what not in ("layer", "vllm") or case.engine == what
        return owner == case.system and case.part != "training" and engine

    def predict(values: Mapping[str, float], rows: IntArray) -> FloatArray:
        known = {**SHIPPED, **values}
        return np.array([older_seconds(cases[row], known) for row in rows.tolist()])

    return Problem(
        np.array([case.seconds for case in cases]),
        [f"{case.system} {case.model}" for case in cases],
        constants,
        {one.name: np.array([affects(one.name, case) for case in cases], dtype=bool) for one in constants},
        predict,
        soft_scale=_SOFT_SCALE,
    )
