"""Published rows of serving and of offline generation as engines, models and batches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.decode import HEAD_BYTES, EngineShape, decode_model, latent_layers, prefill_seconds
from rpegc.cost.engines import ENGINES, EngineConstants
from rpegc.cost.rollout import Rollout, roll_out
from rpegc.hardware import Machine
from rpegc.lengths import Lengths
from rpegc.target import FloatArray, IntArray
from rpegc.validate.facts import gpu_of, machine
from rpegc.validate.published_models import published_model
from rpegc.validate.refit import Constant, Problem
from rpegc.validate.table import Folder, Row, Skipped, SkipRow, number, whole
from rpegc.validate.training_rows import with_values

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


DEVIATION = 0.1
"""How far an engine's overhead may lie from that of all engines (of the logarithm)."""

BURST_INTERFERENCE = 0.55
"""SGLang reads all waiting prompts before it decodes: of a burst, a request waits for half of the others' prompts."""

_SERVING_OWN: Mapping[str, tuple[float, float]] = {
    "step_s": (0.3e-3, 0.5),
    "layer_s": (25e-6, 0.2),
    "moe_layer_s": (30e-6, 0.3),
    "host_s": (1.0e-3, 0.5),
    "sequence_s": (50e-6, 0.5),
    "allreduce_factor": (1.0, 0.3),
    "prefill_interference": (1.0, 0.3),
}
_SERVING_COMMON: Mapping[str, tuple[float, float]] = {
    "gemm_bf16": (0.75, 0.1),
    "gemm_fp8": (0.55, 0.15),
    "expert_share": (0.4, 0.4),
    "expert_half_tokens": (12.0, 0.5),
    "latent_layer_s": (15e-6, 0.7),
}
_GPU: Mapping[str, tuple[float, float]] = {"eff_weights": (0.84, 0.03), "eff_kv": (0.80, 0.03)}
_HOPPER = ("h100-dgx", "h200-dgx", "gh200-alps", "h20", "h800")
_OFFLINE: Mapping[str, tuple[float, float]] = {
    "step_s": (0.3e-3, 0.5),
    "layer_s": (25e-6, 0.4),
    "moe_layer_s": (30e-6, 0.3),
    "host_s": (1.0e-3, 0.5),
    "sequence_s": (10e-6, 0.7),
    "allreduce_factor": (4.0, 0.7),
    "prefill_interference": (1.0, 0.05),
    "gemm_bf16": (0.65, 0.1),
    "gemm_fp8": (0.62, 0.1),
    "expert_share": (0.75, 0.2),
    "expert_half_tokens": (12.0, 0.5),
    "shared_experts_wait": (1.4, 0.1),
}
RELEASE_SPREAD = 0.1
"""Of the logarithm of an engine release's seconds over those of the newest: 0.14 and 0.17 differ by 7.7 %."""

_LATENT = "latent_layer_s"
_MIXTURE = ("moe_layer_s", "expert_share", "expert_half_tokens")


def generation_problem(cases: list[GenerationCase], offline: bool) -> Problem:
    """Return the problem of serving or offline rows: overheads per engine, kernel shares common to all."""
    own = _OFFLINE if offline else _SERVING_OWN
    common = {} if offline else _SERVING_COMMON
    constants: list[Constant] = []
    affects: dict[str, np.ndarray] = {}
    engines = np.array([case.engine for case in cases])
    gpus = np.array([_chip(case.gpu) for case in cases])
    mixture = np.array([case.architecture.experts > 0 for case in cases], dtype=bool)
    latent = np.array([latent_layers(case.architecture) > 0 for case in cases], dtype=bool)
    fp8 = np.array([case.shape[0] > 0 for case in cases], dtype=bool)

    def concerned(name: str) -> np.ndarray:
        rows = np.ones(len(cases), dtype=bool)
        if name in _MIXTURE:
            rows &= mixture
        if name == _LATENT:
            rows &= latent
        if name == "shared_experts_wait":
            rows &= np.array([case.engine_dp > 1 for case in cases], dtype=bool)
        if name == "gemm_fp8":
            rows &= fp8
        return rows

    present = sorted(set(engines.tolist()))
    base = {name: float(np.exp(np.mean([np.log(_shipped(engine, name)) for engine in present]))) for name in own}
    for name, (prior, spread) in own.items():
        key = f"base {name}"
        constants.append(Constant(key, base[name], prior, spread))
        affects[key] = concerned(name)
    for engine in present:
        for name in own if not offline else ():
            key = f"{engine} {name}"
            first = BURST_INTERFERENCE if (engine, name) == ("sglang", "prefill_interference") else 1.0
            constants.append(Constant(key, _shipped(engine, name) / base[name], first, DEVIATION))
            affects[key] = (engines == engine) & concerned(name)
    for name, (prior, spread) in common.items():
        constants.append(Constant(f"all {name}", getattr(ENGINES["vllm"], name).value, prior, spread))
        affects[f"all {name}"] = concerned(name)
    for gpu in sorted(set(gpus.tolist())):
        for name, (prior, spread) in _GPU.items():
            key = f"gpu-{gpu} {name}"
            constants.append(Constant(key, getattr(machine(gpu).accelerator, name).value, prior, spread))
            affects[key] = gpus == gpu
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[case.engine, case.model, case.gpu].append(index)
    where = np.zeros(len(cases), dtype=np.int64)
    for number_, members in enumerate(groups.values()):
        where[members] = number_
    rollouts = [offline_rollout(case) for case in cases] if offline else []

    def predict(values: Mapping[str, float], rows: IntArray) -> FloatArray:
        found = np.zeros(len(rows))
        for number_, (engine, _, gpu) in enumerate(groups):
            here = np.flatnonzero(where[rows] == number_)
            if not len(here):
                continue
            constants_, hardware = setting(engine, gpu, values)
            some = [cases[row] for row in rows[here].tolist()]
            if offline:
                found[here] = offline_seconds(
                    some, [rollouts[row] for row in rows[here].tolist()], hardware, constants_
                )
            else:
                found[here] = serving_seconds(some, hardware, constants_)
        factors = {**RELEASES, **{key.split(" ")[1]: value for key, value in values.items() if key[:8] == "release "}}
        late = np.array([factors.get(cases[row].release, 1.0) for row in rows.tolist()], dtype=np.float64)
        return np.asarray(found * late)

    releases = np.array([case.release for case in cases])
    for release in sorted(set(releases.tolist()) - {""}):
        key = f"release {release}"
        start = RELEASES.get(release, 1.0)
        constants.append(Constant(key, start, 1.0, RELEASE_SPREAD))
        affects[key] = releases == release

    return Problem(
        np.array([case.seconds for case in cases]),
        [case.model for case in cases],
        tuple(constants),
        affects,
        predict,
        rounds=1,
    )


def _shipped(engine: str, name: str) -> float:
    return float(getattr(ENGINES[engine], name).value)


def _chip(gpu: str) -> str:
    """Return the family of GPUs that share their memory efficiencies, by one of them."""
    return _HOPPER[0] if gpu in _HOPPER else gpu


def setting(engine: str, gpu: str, values: Mapping[str, float]) -> tuple[EngineConstants, Machine]:
    """Return engine and machine with these values in place of the shipped ones."""
    known = {field.name for field in fields(EngineConstants)}
    changed: dict[str, object] = {}
    for name in sorted(known):
        if f"base {name}" in values:
            value = values[f"base {name}"] * values.get(f"{engine} {name}", 1.0)
            changed[name] = replace(getattr(ENGINES[engine], name), value=value)
    memory: dict[str, float] = {}
    constants = ENGINES[engine]
    for key, value in values.items():
        owner, name = key.split(" ")
        if owner == "all" and name in known:
            changed[name] = replace(getattr(constants, name), value=value)
        elif owner == f"gpu-{_chip(gpu)}":
            memory[name] = value
    return replace(constants, **changed), with_values(machine(gpu), memory)  # type: ignore[arg-type]
