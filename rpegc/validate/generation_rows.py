"""Published rows of serving and of offline generation as engines, models and batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.decode import HEAD_BYTES, EngineShape, decode_model, prefill_seconds
from rpegc.cost.engines import EngineConstants
from rpegc.cost.rollout import Rollout, roll_out
from rpegc.hardware import Machine
from rpegc.lengths import Lengths
from rpegc.target import FloatArray
from rpegc.validate.facts import gpu_of, machine
from rpegc.validate.published_models import published_model
from rpegc.validate.table import Folder, Row, Skipped, SkipRow, number, whole

SERVING_FILES = r"gen_aic\w*\.csv"
SERVING_COLUMNS = (
    "engine", "version", "model", "gpu", "n_gpus", "precision", "tp", "ep", "dp_attn", "isl", "osl", "concurrency",
    "ttft_ms", "tpot_ms",
)  # fmt: skip
OFFLINE_FILES = r"gen_(trtllm|azure)\w*\.csv"
OFFLINE_COLUMNS = (
    "engine", "version", "model", "gpu", "precision", "tp", "isl", "osl", "num_requests", "output_tok_s_total",
)  # fmt: skip
QUEUE_MS = 5000.0
"""A first token that takes longer has queued: the stated concurrency is then not the running batch."""

OFFLINE_BATCH = 2048
"""Default `max_batch_size` of TensorRT-LLM's benchmark."""
OFFLINE_REQUESTS = 1000.0
OFFLINE_RESERVED_BYTES = 3.0e9
OFFLINE_CACHE_SHARE = 0.95
OFFLINE_BATCHED_TOKENS = 8192.0
OFFLINE_POINTS = 24
RELEASES: Mapping[str, float] = {"0.14": 1.03}
"""Seconds of an engine's release over those of the newest."""
_ENGINES = {"trtllm": "tensorrt-llm", "vllm": "vllm", "sglang": "sglang"}


@dataclass(frozen=True, slots=True)
class GenerationCase:
    """One published row. `doubtful` says why its stated batch or engine mode cannot be what ran, if so."""

    row_id: str
    source: str
    engine: str
    model: str
    architecture: Architecture
    gpu: str
    tp: int
    shape: tuple[float, float, float, float, float]
    prompt: int
    response: int
    batch: float
    seconds: float
    doubtful: str = ""
    engine_dp: int = 1
    release: str = ""


def serving_cases(folder: Folder) -> tuple[list[GenerationCase], list[Skipped]]:
    """Return rows of serving at fixed concurrency; `seconds` is the time per output token."""
    return _cases(folder, SERVING_FILES, SERVING_COLUMNS, _serving)


def offline_cases(folder: Folder) -> tuple[list[GenerationCase], list[Skipped]]:
    """Return rows of offline throughput; `seconds` is the duration of the whole job."""
    return _cases(folder, OFFLINE_FILES, OFFLINE_COLUMNS, _offline)


def _cases(
    folder: Folder, files: str, columns: tuple[str, ...], read: Callable[[Row], GenerationCase]
) -> tuple[list[GenerationCase], list[Skipped]]:
    cases, skipped = [], []
    for name in folder.names(files):
        for row in folder.rows(name, columns):
            try:
                cases.append(read(row))
            except SkipRow as reason:
                skipped.append(Skipped(row["row_id"], str(reason)))
    return cases, skipped


def _serving(row: Row) -> GenerationCase:
    model, architecture = published_model(row["model"])
    engine = _ENGINES.get(row["engine"])
    if engine is None:
        raise SkipRow(f"unknown engine {row['engine']}")
    gpu, tp = gpu_of(row), whole(row, "tp")
    if tp > 8 and tp == whole(row, "n_gpus"):
        raise SkipRow("tensor parallelism over more than a node repeats rows of eight GPUs: mislabelled")
    if whole(row, "dp_attn", 1) > 1:
        raise SkipRow("data-parallel attention: the source does not say whose concurrency it states")
    shape = _formats(row, model, engine)
    _must_fit(architecture, gpu, tp, shape)
    seconds = number(row, "tpot_ms") * 1e-3
    batch = number(row, "concurrency")
    doubtful = ""
    if number(row, "ttft_ms", 1.0) > QUEUE_MS:
        doubtful = "queues (first token after more than 5 s)"
    elif row["version"] == "0.12.0" and model == "llama-3.1-8b":
        doubtful = "prompts read faster than the peak allows: a prefix cache"
    elif row["version"] == "0.12.0" and model == "qwen3-235b-a22b":
        doubtful = "the same at any concurrency: no CUDA graphs"
    elif row["version"].startswith("1.1.0rc2") and model == "deepseek-v3" and row["ep"] == row["tp"]:
        doubtful = (
            "half the time of the same release at other settings, and less at longer outputs: speculative decoding"
        )
    elif _second_concurrency(row) != batch:
        doubtful = "the source states two concurrencies"
    elif row["ep"] == "0":
        doubtful = "no prefill in the time per token"
    return GenerationCase(
        row["row_id"], row["source"], engine, model, architecture, gpu, tp, shape, whole(row, "isl"),
        whole(row, "osl"), batch, seconds, doubtful,
    )  # fmt: skip


def _second_concurrency(row: Row) -> float:
    stated = re.search(r"silicon_concurrency=([0-9.]+)", row.get("notes", ""))
    return float(stated.group(1)) if stated else number(row, "concurrency")


def _offline(row: Row) -> GenerationCase:
    model, architecture = published_model(row["model"])
    gpu, tp = gpu_of(row), whole(row, "tp")
    if not row["precision"].lower().startswith(("fp8", "fp16", "bf16")):
        raise SkipRow(f"precision {row['precision'] or 'not stated'}")
    fp8 = float(row["precision"].lower().startswith("fp8"))
    shape = (fp8, 2.0 - fp8, fp8, 2.0 - fp8, 2.0 - fp8)
    _must_fit(architecture, gpu, tp, shape)
    if not row["version"]:
        raise SkipRow("the engine's version is not stated")
    requests = number(row, "num_requests", OFFLINE_REQUESTS)
    response = whole(row, "osl")
    seconds = requests * response / number(row, "output_tok_s_total")
    attention_dp = tp if "attention DP enabled" in row.get("notes", "") else 1
    return GenerationCase(
        row["row_id"], row["source"], "tensorrt-llm-offline", model, architecture, gpu, tp // attention_dp, shape,
        whole(row, "isl"), response, requests, seconds, "", attention_dp, _release(row),
    )  # fmt: skip


def _release(row: Row) -> str:
    """Return the release of the engine, where it differs from the newest: "0.14"."""
    release = ".".join(row["version"].split(".")[:2])
    return release if release in RELEASES else ""


def _formats(row: Row, model: str, engine: str) -> tuple[float, float, float, float, float]:
    """Return FP8 and bytes of dense matrices, the same of experts, bytes of the cache.

    TensorRT-LLM's FP8 checkpoints carry an FP8 cache. Four-bit checkpoints quantise experts alone and multiply in
    BF16; four bits and a scale per 32 elements are 0.53 bytes.
    """
    printed = row["precision"]
    if re.search(r"nvfp4|int4|fp4", printed) or model == "gpt-oss-120b":
        return 0.0, 2.0, 0.0, 0.53, 2.0
    if "fp8" in printed or "fp8" in row["model"].lower():
        return 1.0, 1.0, 1.0, 1.0, 1.0 if engine == "tensorrt-llm" else 2.0
    return 0.0, 2.0, 0.0, 2.0, 2.0


def weight_bytes(architecture: Architecture, shape: Sequence[float]) -> float:
    """Return the bytes of all weights: vocabulary matrices in BF16, the rest in their formats."""
    tables = float(architecture.embedding_parameters + architecture.head_parameters)
    dense = float(architecture.dense_parameters) - tables
    return tables * HEAD_BYTES + dense * shape[1] + architecture.expert_parameters_total * shape[3]


def _must_fit(architecture: Architecture, gpu: str, tp: int, shape: Sequence[float]) -> None:
    if weight_bytes(architecture, shape) > tp * machine(gpu).accelerator.hbm_bytes.value:
        raise SkipRow(f"the weights do not fit the stated tensor parallelism of {tp}")


def engine_shape(cases: Sequence[GenerationCase]) -> EngineShape:
    """Return the degrees and formats of cases, one row each."""
    formats = np.array([case.shape for case in cases]).T
    ones = np.ones(len(cases), dtype=np.int64)
    return EngineShape(
        tp=np.array([case.tp for case in cases]),
        pp=ones,
        engine_dp=np.array([case.engine_dp for case in cases]),
        fp8=formats[0],
        weight_bytes=formats[1],
        kv_bytes=formats[4],
        gpus_per_node=8,
        expert_bytes=formats[3],
        expert_fp8=formats[2],
    )


def serving_seconds(cases: Sequence[GenerationCase], hardware: Machine, engine: EngineConstants) -> FloatArray:
    """Return the time per output token of cases of one model and GPU: a step, delayed by the others' prefill.

    seconds = step(batch, prompt + response / 2) + interference (batch - 1) / response * prefill(prompt)
    """
    shape = engine_shape(cases)
    architecture = cases[0].architecture
    prompt, response, batch = (
        np.array([getattr(case, name) for case in cases], dtype=np.float64) for name in ("prompt", "response", "batch")
    )
    step = decode_model(architecture, hardware, engine, shape).step(batch[:, None], (prompt + response / 2)[:, None])
    prefill = prefill_seconds(architecture, hardware, engine, shape, prompt, prompt**2, prompt)
    delay = engine.prefill_interference.value * (batch - 1) / response * prefill
    return np.asarray(step.total[:, 0] + delay)


def offline_rollout(case: GenerationCase) -> Rollout:
    """Return the rollout: an engine's cache reserves prompt and response of every running request in full."""
    hbm = machine(case.gpu).accelerator.hbm_bytes.value
    architecture, gpus = case.architecture, case.tp * case.engine_dp
    experts = architecture.expert_parameters_total * case.shape[3]
    own = (weight_bytes(architecture, case.shape) - experts) / case.tp + experts / gpus
    free = OFFLINE_CACHE_SHARE * (hbm - OFFLINE_RESERVED_BYTES - own)
    tokens = float(case.prompt + case.response)
    slots = free / architecture.sequence_bytes_per_rank(tokens, case.tp, case.shape[4])
    lengths = Lengths.fixed(case.response)
    each, engines = np.full(1, np.ceil(case.batch / case.engine_dp)), np.full(1, float(case.engine_dp))
    grid = np.linspace(0.0, float(case.response), OFFLINE_POINTS)
    room = np.clip(np.full(1, slots), 1.0, OFFLINE_BATCH)
    return roll_out(lengths, grid, case.prompt, each, room, engines, engines)


def offline_seconds(
    cases: Sequence[GenerationCase], rollouts: Sequence[Rollout], hardware: Machine, engine: EngineConstants
) -> FloatArray:
    """Return the seconds of offline jobs of one model and GPU: decode steps of their rollouts, and prefill."""
    shape = engine_shape(cases)
    architecture = cases[0].architecture
    steps, active, context, busy = (
        np.concatenate([getattr(rollout, name) for rollout in rollouts])
        for name in ("steps", "active", "context", "busy_mean")
    )
    step = decode_model(architecture, hardware, engine, shape).step(active, context)
    prompt = np.array([case.prompt for case in cases], dtype=np.float64)
    requests = np.array([case.batch / case.engine_dp for case in cases])
    together = np.maximum(prompt, OFFLINE_BATCHED_TOKENS)
    prefill = prefill_seconds(architecture, hardware, engine, shape, prompt, prompt**2, together)
    decoding = np.sum(steps * busy * step.total, axis=1)
    return np.asarray(decoding + engine.prefill_interference.value * requests * prefill)
