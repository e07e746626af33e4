"""Published RL rows as runs: what a row leaves out follows rules that hold for all rows of its kind."""

from __future__ import annotations

import re
from collections.abc import Callable

from rpegc.architecture import Architecture
from rpegc.lengths import Lengths
from rpegc.target import EngineLayout, MeshClass, ShardedLayout
from rpegc.validate.platforms import platform, platform_of
from rpegc.validate.published_models import published_model
from rpegc.validate.rl_runs import Run
from rpegc.validate.table import Folder, Row, Skipped, SkipRow, number, whole

LOG_FILES = r"rl_components\w*\.csv"
LOG_COLUMNS = (
    "framework", "version", "model", "gpu", "implied_peak_tflops", "n_gpus", "train_backend", "prompts_per_step",
    "samples_per_prompt", "mean_prompt_len", "mean_response_len", "gen_s", "old_logprob_s", "update_actor_s",
    "step_core_s", "notes",
)  # fmt: skip
TOTAL_FILES = r"rl_nemo_rl\w*\.csv"
TOTAL_COLUMNS = (
    "model", "gpu", "n_gpus", "mean_gen_len", "prompts_per_step", "samples_per_prompt", "train_batch_seqs", "gen_tp",
    "train_tp", "train_pp", "step_time_s", "notes",
)  # fmt: skip
PROMPT_TOKENS = 115
"""Tokens of a prompt in NeMo-RL's recipes: printed throughput times step time leaves 98 to 150 beside the response."""

MAX_SEQUENCES = 1024
OLD_UNTIL = "2025-08"
"""verl ran vLLM's old engine without CUDA graphs by default before this month."""

_LOG_PARTS = {
    "gen_s": "generation",
    "generate_only_s": "engine",
    "reshard_in_gen_s": "reshard",
    "old_logprob_s": "old log-probs",
    "ref_s": "reference",
    "values_s": "values",
    "update_critic_s": "critic",
    "update_actor_s": "actor",
}
_SIBLING_PROMPTS, _SIBLING_SAMPLES, _SIBLING_GPUS = 64, 5, 8


def log_runs(folder: Folder) -> tuple[list[Run], list[Skipped]]:
    """Return the runs of logs with component times."""
    return _runs(folder, LOG_FILES, LOG_COLUMNS, _log_run)


def total_runs(folder: Folder) -> tuple[list[Run], list[Skipped]]:
    """Return the runs of NeMo-RL, which prints totals of a step."""
    return _runs(folder, TOTAL_FILES, TOTAL_COLUMNS, _total_run)


def _runs(
    folder: Folder, files: str, columns: tuple[str, ...], read: Callable[[Row], Run]
) -> tuple[list[Run], list[Skipped]]:
    runs, skipped = [], []
    for name in folder.names(files):
        for row in folder.rows(name, columns):
            try:
                runs.append(read(row))
            except SkipRow as reason:
                skipped.append(Skipped(row["row_id"], str(reason)))
    return runs, skipped


def _log_run(row: Row) -> Run:
    framework, engine = _framework(row)
    adapters = 32 if row["trainable"].startswith("LoRA") else 0
    if not row["gen_s"]:
        raise SkipRow("no generation phase: a refit timing, or an asynchronous run without lengths")
    for pattern, reason in (
        ("deterministic", "deterministic kernels, slower by design"),
        ("multi-turn", "multi-turn generation with tools: their time is not stated"),
        ("first step", "a first step, with warm-up"),
    ):
        if pattern in row["notes"] and "stock kernels" not in row["notes"]:
            raise SkipRow(reason)
    model, architecture = published_model(row["model"])
    gpu = "h100-dgx" if adapters and not row["implied_peak_tflops"] else platform_of(row)
    machine = platform(gpu)
    gpus = whole(row, "n_gpus", _SIBLING_GPUS if adapters else None)
    mean = number(row, "mean_prompt_len", PROMPT_TOKENS) + number(row, "mean_response_len")
    default = _SIBLING_PROMPTS if adapters else (1024 if engine == "megatron" else None)
    prompts = whole(row, "prompts_per_step", default)
    counted = number(row, "rollout_batch_seqs", number(row, "total_tokens", 0.5) / mean)
    samples = whole(row, "samples_per_prompt", max(round(counted / prompts), 1) if counted > 1 else _SIBLING_SAMPLES)
    updates = max(prompts // whole(row, "minibatch_prompts", prompts if adapters else prompts // 4 or 1), 1)
    mesh = _mesh(gpus, machine.gpus_per_node)
    per_gpu = max(_SIBLING_PROMPTS // gpus, 1) if adapters else whole(row, "train_mbs_per_gpu", 4)
    budget = whole(row, "token_budget_per_gpu", 1) if row["token_budget_per_gpu"] else 0
    if framework == "nemo-rl":
        budget = 4096
    forward = per_gpu if adapters else whole(row, "logprob_mbs_per_gpu", per_gpu)
    recompute = "full" if row["act_recompute"].startswith("True") or adapters else "none"
    train, passes = (
        _training_layout(row, engine, gpus, size, budget, recompute if size_of_update else "none", adapters > 0)
        for size, size_of_update in ((per_gpu, True), (forward, False))
    )
    tp = whole(row, "gen_tp", _engine_tp(architecture, gpus, framework))
    return Run(
        row_id=row["row_id"],
        source=row["source"],
        origin=row["source"].split(" @")[0],
        model=model,
        gpu=gpu,
        framework=framework,
        engine_class=engine,
        architecture=architecture,
        machine=machine,
        prompts=prompts,
        samples=samples,
        minibatches=updates,
        prompt=Lengths.from_mean(number(row, "mean_prompt_len", PROMPT_TOKENS), _most(row, "max_prompt_len", 1024)),
        response=_response(row),
        train_mesh=mesh,
        train_layout=train,
        forward_layout=passes,
        generation_mesh=mesh,
        generation_layout=_engine_layout(gpus, tp, number(row, "gen_mem_util", 0.6)),
        engine_flags=_modes(row, framework, adapters),
        adapters=adapters,
        measured={part: number(row, column) for column, part in _LOG_PARTS.items() if row.get(column)}
        | ({"step": number(row, "step_core_s")} if row["step_core_s"] else {}),
    )


def _response(row: Row) -> Lengths:
    """Return the lengths, cut at the longest response of the log: the one fact on the tail that logs print."""
    mean = number(row, "mean_response_len")
    most = min(_most(row, "max_response_len", 1024), int(number(row, "longest_response", 1e9)) + 1)
    return Lengths.from_mean(min(mean, float(most)), most)


def _most(row: Row, column: str, default: int) -> int:
    return whole(row, column, default)


def _framework(row: Row) -> tuple[str, str]:
    printed, backend = row["framework"], row["train_backend"]
    engine = "megatron" if backend.startswith("Megatron") else "fsdp"
    if printed.startswith("verl"):
        return "verl", engine
    if printed.startswith("NeMo-RL"):
        return "nemo-rl", engine
    if re.search("slime|vime", printed):
        return "slime", engine
    raise SkipRow(f"no constants for framework {printed}")


def _modes(row: Row, framework: str, adapters: int) -> frozenset[str]:
    """Return the engine's modes: verl before August 2025 ran its old engine eagerly, unless the row says otherwise."""
    flags = {"lora"} if adapters else set()
    version = re.search(r"20\d\d-\d\d", row["version"])
    numbered = re.match(r"0\.[7-9]", row["version"])
    old = framework == "verl" and not numbered and (version is None or version.group() < OLD_UNTIL)
    eager = {"True": True, "False": False}.get(row.get("enforce_eager", ""), old)
    if eager:
        flags |= {"eager", "old_engine"} if old else {"eager"}
    return frozenset(flags)


def _engine_tp(architecture: Architecture, gpus: int, framework: str) -> int:
    """Return the engine's tensor parallelism where a row leaves it out, by the size of the model, as sibling rows."""
    if framework != "verl":
        return 1
    billions = architecture.parameters / 1e9
    wanted = 2 if billions < 20 else (4 if billions < 50 else 8)
    return min(wanted, gpus)


def _mesh(gpus: int, per_node: int) -> MeshClass:
    local = min(gpus, per_node)
    if gpus % local:
        raise SkipRow(f"{gpus} GPUs are no whole nodes of {per_node}")
    return MeshClass(gpus // local, local)


def _engine_layout(gpus: int, tp: int, share: float, precision: str = "bf16") -> EngineLayout:
    if gpus % tp:
        raise SkipRow(f"tensor parallelism {tp} of the engine does not tile {gpus} GPUs")
    return EngineLayout(
        replicas=gpus // tp,
        tp=tp,
        max_sequences=MAX_SEQUENCES,
        memory_fraction=min(share + 0.1, 0.9),
        precision=precision,
        offload=True,
    )


def _training_layout(
    row: Row, engine: str, gpus: int, micro_batch: int, budget: int, recompute: str, adapters: bool
) -> ShardedLayout:
    tp, pp = whole(row, "train_tp", 4 if engine == "megatron" else 1), whole(row, "train_pp", 1)
    if engine == "megatron" and not row["train_tp"]:
        pp = 2
    cp, ep = whole(row, "train_cp", 1), whole(row, "train_ep", 1)
    if gpus % (tp * pp * cp):
        raise SkipRow(f"the printed degrees do not tile {gpus} GPUs")
    dp = gpus // (tp * pp * cp)
    offload = row.get("offload", "")
    moved = "actor params" in offload or adapters
    return ShardedLayout(
        dp=dp,
        cp=cp,
        tp=tp,
        pp=pp,
        vpp=whole(row, "train_vpp", 1),
        ep=ep,
        zero=3 if engine == "fsdp" else 1,
        shard_size=dp * cp if engine == "fsdp" else 1,
        sequence_parallel=tp > 1,
        micro_batch=0 if budget else micro_batch,
        token_budget=budget,
        recompute=recompute,
        offload_parameters=moved,
        offload_optimizer=moved or "optimizer" in offload,
    )


def _total_run(row: Row) -> Run:
    model, architecture = published_model(row["model"])
    gpu = platform_of(row)
    machine = platform(gpu)
    if row["algorithm"].startswith("DAPO"):
        raise SkipRow("over-sampling: the table's batch is not the recipe's")
    gpus = whole(row, "n_gpus")
    train_gpus, engine_gpus = whole(row, "n_gpus_train", gpus), whole(row, "n_gpus_gen", gpus)
    longest = whole(row, "max_total_len")
    packed = row["seq_packing"] == "True"
    eight_bits = row["train_precision"] == "FP8"
    batch, sequences = whole(row, "train_batch_seqs"), whole(row, "rollout_batch_seqs")
    colocated = row["placement"] == "colocated"
    train, forward = (
        _total_layout(row, train_gpus, number(row, size, 1.0), longest, packed, recompute)
        for size, recompute in (("train_mbs", row["act_recompute"]), ("logprob_mbs", "none"))
    )
    mean = min(number(row, "mean_gen_len"), float(longest - PROMPT_TOKENS))
    flags = frozenset() if colocated else frozenset({"async"})
    precision = "fp8" if row["gen_precision"] == "FP8" else "bf16"
    return Run(
        row_id=row["row_id"],
        source=row["source"],
        origin=f"NeMo-RL {row['version']} {machine.accelerator.name}",
        model=model,
        gpu=gpu,
        framework="nemo-rl",
        engine_class="megatron",
        architecture=architecture,
        machine=machine,
        prompts=whole(row, "prompts_per_step"),
        samples=whole(row, "samples_per_prompt"),
        minibatches=max(sequences // batch, 1),
        prompt=Lengths.from_mean(PROMPT_TOKENS, 512),
        response=Lengths.from_mean(mean, longest - PROMPT_TOKENS),
        train_mesh=_mesh(train_gpus, machine.gpus_per_node),
        train_layout=train,
        forward_layout=forward,
        generation_mesh=_mesh(engine_gpus, machine.gpus_per_node),
        generation_layout=_engine_layout(
            engine_gpus, whole(row, "gen_tp"), number(row, "gen_mem_util", 0.6), precision
        ),
        engine_flags=flags,
        train_flags=frozenset({"fp8"}) if eight_bits else frozenset(),
        asynchronous="Off" in row["policy_staleness"],
        colocated=colocated,
        release=row["version"],
        measured={"step": number(row, "step_time_s")},
    )


def _total_layout(row: Row, gpus: int, micro_batch: float, longest: int, packed: bool, recompute: str) -> ShardedLayout:
    tp, pp, cp, ep = (whole(row, f"train_{name}", 1) for name in ("tp", "pp", "cp", "ep"))
    if gpus % (tp * pp * cp):
        raise SkipRow(f"the printed degrees do not tile {gpus} GPUs")
    dp = gpus // (tp * pp * cp)
    return ShardedLayout(
        dp=dp,
        cp=cp,
        tp=tp,
        pp=pp,
        vpp=whole(row, "train_vpp", 1),
        ep=ep,
        zero=1,
        sequence_parallel=tp > 1,
        micro_batch=0 if packed else int(micro_batch),
        token_budget=int(micro_batch * longest / cp) if packed else 0,
        recompute="full" if recompute == "full" else "none",
    )
