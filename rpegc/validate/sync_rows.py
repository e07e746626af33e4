"""Published times of weight syncs, through the planner's own price: colocated reshards, broadcasts, bulk refits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.transitions import GENERATION, SYNC_CONSTANTS, TRAINING, SyncConstants, sync_seconds
from rpegc.cost.work import StageWork
from rpegc.hardware import Figure
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import WORDS, FloatArray, IntArray, MeshClass
from rpegc.validate.platforms import platform, platform_of
from rpegc.validate.published_models import published_model
from rpegc.validate.refit import Constant, Problem
from rpegc.validate.rl_rows import LOG_COLUMNS, LOG_FILES
from rpegc.validate.table import Folder, Row, Skipped, SkipRow, number, whole

FILES = r"rl_weight_sync\w*\.csv"
COLUMNS = ("framework", "model", "hardware", "trainer_ranks", "method", "time_s")
LINK_BYTES = 5e10
"""Bytes per second and rank that no network of these rows exceeds."""

_METHODS = ("deepspeed", "verl", "reshard", "verl same")
_PRIORS: Mapping[str, tuple[float, float]] = {
    "tensor_s": (3e-4, 0.7),
    "bandwidth": (1.8e10, 0.4),
    "fixed_s": (0.25, 0.5),
}
_FIELDS = {
    "deepspeed": ("across_tensor_s", "across_bandwidth"),
    "verl": ("across_tensor_s", "across_bandwidth"),
    "reshard": ("across_fixed_s", "across_bandwidth"),
    "verl same": ("same_fixed_s", "same_bandwidth"),
}
"""What is refitted per method; `deepspeed` stands for any broadcast tensor by tensor."""


@dataclass(frozen=True, slots=True)
class SyncCase:
    """One sync: `method` names the constants."""

    row_id: str
    source: str
    model: str
    method: str
    architecture: Architecture
    gpu: str
    ranks: int
    tp: int
    fp8: bool
    seconds: float


def sync_cases(folder: Folder) -> tuple[list[SyncCase], list[Skipped]]:
    """Return syncs of the ablation tables and of logs that time them apart."""
    cases, skipped = [], []
    for files, columns, read in ((FILES, COLUMNS, _table_case), (LOG_FILES, LOG_COLUMNS, _log_case)):
        for name in folder.names(files):
            for row in folder.rows(name, columns):
                try:
                    case = read(row)
                except SkipRow as reason:
                    skipped.append(Skipped(row["row_id"], str(reason)))
                    continue
                if case is not None:
                    cases.append(case)
    return cases, skipped


def _table_case(row: Row) -> SyncCase:
    model, architecture = published_model(row["model"])
    ranks = whole(row, "trainer_ranks")
    seconds = number(row, "time_s")
    if 2.0 * architecture.parameters / seconds > LINK_BYTES * ranks / 2:
        raise SkipRow("faster than the links: not the time of a transfer")
    broadcast = re.search(r"=False|broadcast", row["method"])
    gpu = platform_of({"gpu": row["hardware"]})
    return SyncCase(
        row["row_id"], row["source"], model, "deepspeed" if broadcast else "verl", architecture, gpu, ranks, 1, False,
        seconds,
    )  # fmt: skip


def _log_case(row: Row) -> SyncCase | None:
    """Return a sync of a log; None for a log that does not time it apart."""
    if row.get("reshard_in_gen_s"):
        model, architecture = published_model(row["model"])
        gpus = whole(row, "n_gpus", 8)
        return SyncCase(
            row["row_id"], row["source"], model, "verl same", architecture, "h100-dgx", gpus, 1, False,
            number(row, "reshard_in_gen_s"),
        )  # fmt: skip
    if not row.get("weight_sync_s") or "reshard refit" not in row["notes"]:
        return None
    model, architecture = published_model(row["model"])
    ranks = whole(row, "gen_tp")
    fp8 = "fp8" in row.get("gen_precision", "").lower()
    return SyncCase(
        row["row_id"], row["source"], model, "reshard", architecture, platform_of(row), ranks, ranks, fp8,
        number(row, "weight_sync_s"),
    )  # fmt: skip


def _constants(method: str, values: Mapping[str, float]) -> SyncConstants:
    base = SYNC_CONSTANTS[method.split(" ")[0]]
    changed = {
        key.split(" ")[-1]: Figure(value, "fitted", "refitted")
        for key, value in values.items()
        if key.rsplit(" ", 1)[0] == method
    }
    return replace(base, **changed)  # type: ignore[arg-type]


def seconds_of(case: SyncCase, values: Mapping[str, float]) -> float:
    """Return the planner's price of a sync."""
    hardware = platform(case.gpu)
    local = min(case.ranks, hardware.gpus_per_node)
    mesh = MeshClass(max(case.ranks // local, 1), local)
    shard = case.ranks if case.method == "verl same" else 1
    source = (("kind", TRAINING), ("offload", 0), ("pp", 1), ("shard", shard), ("tp", 1))
    precision = WORDS["precision"].index("fp8" if case.fp8 else "bf16")
    target = (("kind", GENERATION), ("pp", 1), ("precision", precision), ("tp", case.tp))
    pairs = sync_seconds(
        _work(case), hardware, "verl", mesh, (source,), mesh, (target,), None, _constants(case.method, values)
    )
    return float((pairs.same if case.method == "verl same" else pairs.across)[0, 0])


def _work(case: SyncCase) -> StageWork:
    one = Lengths.fixed(1)
    return StageWork(
        stage=case.row_id,
        op=Op.SYNC,
        role="actor",
        architecture=case.architecture,
        framework="verl",
        engine_class="fsdp",
        prompts=1,
        samples_per_prompt=1,
        minibatches=1,
        epochs=1,
        prompt_tokens=one,
        response_tokens=one,
    )


def sync_problem(cases: list[SyncCase]) -> Problem:
    """Return the problem: two constants a method."""
    constants: list[Constant] = []
    affects: dict[str, np.ndarray] = {}
    for method in _METHODS:
        for field in _FIELDS[method]:
            name = f"{method} {field}"
            start = getattr(SYNC_CONSTANTS[method.split(" ")[0]], field).value
            constants.append(Constant(name, start, *_PRIORS[field.split("_", 1)[1]]))
            affects[name] = np.array([case.method == method for case in cases], dtype=bool)

    def predict(values: Mapping[str, float], rows: IntArray) -> FloatArray:
        return np.array([seconds_of(cases[row], values) for row in rows.tolist()])

    return Problem(
        np.array([case.seconds for case in cases]),
        [case.model for case in cases],
        tuple(constants),
        affects,
        predict,
        soft_scale=0.25,
    )
