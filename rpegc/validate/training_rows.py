"""Published training rows as work, mesh and layout: what is not stated is assumed here, by rule, for every row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rpegc.architecture import Architecture
from rpegc.cost.framework import FrameworkConstants
from rpegc.cost.table import PriceTable
from rpegc.cost.training import price_training, training_seconds
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import Columns, MeshClass, ShardedLayout, columns_of
from rpegc.validate.facts import FOREIGN_MIXTURES, architecture_of, framework_of, gpu_of, machine, precision_flags
from rpegc.validate.table import Folder, Row, Skipped, SkipRow, number, whole

FILES = r"train_\w+\.csv"
COLUMNS = (
    "framework", "task", "model", "gpu", "n_gpus", "precision", "seq_len", "gbs_seqs", "mbs_seqs", "tp", "pp", "vpp",
    "cp", "ep", "sharding", "act_recompute", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "hw_tflops_per_gpu",
    "step_time_s", "peak_mem_gib", "notes",
)  # fmt: skip
DEFAULT_SEQUENCE = {"torchtitan": 8192}
"""Tokens of a sequence where a table leaves them to the framework's recipe."""

LORA_RANK = 16
PACKED_SAMPLE_TOKENS = 256
"""Tokens of a SQuAD sample (context, question, answer), assumed where a source packs them into longer sequences."""

LLAMA3_VIRTUAL_STAGES = 8
"""The paper on Llama 3 (arXiv 2407.21783) does not state them: 8 assumed (1 / 2 / 4: +15, -3, -12 % of the step)."""

_FOREIGN_KERNELS = "grouped products that were not built for this GPU: 4 to 10 times slower than on an H100"
_SLOWER = "another release of its framework runs this very configuration more than 1.5 times as fast"
REGRESSION = 1.5
"""Ratio of tokens a second between releases on one configuration from which the slower one is left out; the median
deviation between releases is 1.6 %, its 90 % quantile 5 %."""

_SLOW = "the source flags this row as a regression of its own kernels"


@dataclass(frozen=True, slots=True)
class Case:
    """One published run: `seconds` of a step and `peak_bytes` of a GPU, 0 where not stated.

    `origin` is the file of its source; two files of one repository are one source.
    """

    row_id: str
    source: str
    origin: str
    model: str
    gpu: str
    framework: str
    work: StageWork
    mesh: MeshClass
    columns: Columns
    seconds: float
    peak_bytes: float

    @property
    def mixture(self) -> bool:
        """Whether the model has experts."""
        return self.work.architecture is not None and self.work.architecture.experts > 0

    def price(self, hardware: Machine, constants: FrameworkConstants) -> PriceTable:
        """Return the price of the run."""
        return price_training(self.work, self.mesh, self.columns, hardware, constants)

    def predicted_seconds(self, hardware: Machine, constants: FrameworkConstants) -> float:
        """Return the seconds of the run's step."""
        return float(training_seconds(self.work, self.mesh, self.columns, hardware, constants)[0])


def read_cases(folder: Folder, memory: bool = False) -> tuple[list[Case], list[Skipped]]:
    """Return the runs with a step time (with a peak of memory, if `memory`), and the rows left out."""
    cases, skipped = [], []
    for name in folder.names(FILES):
        rows = folder.rows(name, COLUMNS)
        for row in rows:
            if memory and not row["peak_mem_gib"]:
                continue
            try:
                cases.append(_case(row, name.removesuffix(".csv").removesuffix("_ablation"), rows, memory))
            except SkipRow as reason:
                skipped.append(Skipped(row["row_id"], str(reason), _kind(row)))
    return (cases, skipped) if memory else _without_regressions(cases, skipped)


def _without_regressions(cases: list[Case], skipped: list[Skipped]) -> tuple[list[Case], list[Skipped]]:
    """Split off runs whose own framework is much quicker on the very same configuration in another release."""
    rates = [case.work.sequences * case.work.mean_tokens / case.seconds for case in cases]
    best: dict[tuple[object, ...], float] = {}
    keys = [
        (
            case.origin, case.framework, case.model, case.gpu, case.work.engine_flags, case.work.mean_tokens,
            case.work.lora_rank, case.mesh, tuple((name, int(values[0])) for name, values in case.columns.items()),
        )
        for case in cases
    ]  # fmt: skip
    for key, rate in zip(keys, rates, strict=True):
        best[key] = max(best.get(key, 0.0), rate)
    kept = []
    for case, key, rate in zip(cases, keys, rates, strict=True):
        if best[key] > REGRESSION * rate:
            kind = "moe" if case.mixture else "dense"
            skipped.append(Skipped(case.row_id, _SLOWER, kind))
        else:
            kept.append(case)
    return kept, skipped


def _kind(row: Row) -> str:
    """Return what a row that cannot be predicted would have been: "gh200", "moe" or "dense"."""
    if "GH200" in row["gpu"]:
        return "gh200"
    try:
        return "moe" if architecture_of(row)[1].experts else "dense"
    except SkipRow:  # the mixtures that rpegc does not price are known by name
        return "moe" if FOREIGN_MIXTURES.search(row["model"].lower()) else "dense"


def _case(row: Row, origin: str, rows: list[Row], memory: bool) -> Case:
    model, architecture = architecture_of(row)
    framework, engine = framework_of(row)
    if framework == "megatron-bridge" and not _captured(row, rows):
        framework = "megatron-bridge eager"
    gpu = _memory_gpu(row) if memory else gpu_of(row)
    if "regression" in row["notes"] and not memory:
        raise SkipRow(_SLOW)
    if framework == "prime-rl" and architecture.experts and gpu == "b200" and not memory:
        raise SkipRow(_FOREIGN_KERNELS)
    flags = precision_flags(row) | _flags(row, framework)
    sequence = whole(row, "seq_len", DEFAULT_SEQUENCE.get(framework.split()[0]))
    sequences = whole(row, "gbs_seqs")
    packed = max(sequence // PACKED_SAMPLE_TOKENS, 1) if "packed" in row["notes"] else 1
    mesh, layout = _layout(row, framework, rows, machine(gpu).gpus_per_node, packed)
    if sequences < layout.dp:
        raise SkipRow(f"the printed degrees do not tile: {sequences} sequences on {layout.dp} data-parallel ranks")
    work = StageWork(
        stage=row["row_id"],
        op=Op.TRAIN,
        role="model",
        architecture=architecture,
        framework=framework,
        engine_class=engine,
        prompts=sequences * packed,
        samples_per_prompt=1,
        minibatches=1,
        epochs=1,
        prompt_tokens=Lengths.fixed(1),
        response_tokens=Lengths.fixed(sequence // packed - 1),
        trained=True,
        lora_rank=LORA_RANK if "lora" in row["task"].lower() else 0,
        engine_flags=flags,
    )
    columns = columns_of([layout], mesh)
    seconds = 0.0 if memory else _seconds(row, architecture, sequences * sequence, sequence)
    peak = number(row, "peak_mem_gib") * 2**30 if memory else 0.0
    return Case(row["row_id"], row["source"], origin, model, gpu, framework, work, mesh, columns, seconds, peak)


def _captured(row: Row, rows: list[Row]) -> bool:
    """Whether MoE layers run in CUDA graphs: this row says so, or another of the same recipe.

    Megatron-Bridge's recipes of Qwen3 on Blackwell capture them by default since its release of 26.06.
    """
    recent = not _before(row, "26.06") and re.search("B[23]00", row["gpu"])
    if recent and row["model"].lower().startswith("qwen3"):
        return True
    recipe = row.get("source_table", "").split(" ")[0]
    return any(
        re.search(r"CUDA graph \w*moe_router", other["notes"]) and other.get("source_table", "").split(" ")[0] == recipe
        for other in rows
    )


def _before(row: Row, release: str) -> bool:
    """Whether the row's release (year.month) is older than this one, or not stated."""
    stated = re.match(r"\d\d\.\d\d", row.get("version", ""))
    return stated is None or stated.group() < release


def _memory_gpu(row: Row) -> str:
    """Return the GPU of a memory row; bytes do not depend on it, so newer parts count as an eight-GPU node."""
    try:
        return gpu_of(row)
    except SkipRow:
        if re.search(r"\bB[23]00", row["gpu"]):
            return "h200-dgx"
        raise


def _flags(row: Row, framework: str) -> frozenset[str]:
    notes = row["notes"]
    flags = set()
    if framework.startswith("torchtitan") and "AsyncTP" in notes:
        flags.add("overlap_tensor_parallel")
    if framework.startswith("megatron-bridge") and _before(row, "26.06"):
        flags.add("unfused_offset")
    if re.search(r"EP (comm )?overlap(?! OFF)", notes):
        flags.add("overlap_expert_parallel")
    return frozenset(flags)


def _layout(row: Row, framework: str, rows: list[Row], per_node: int, packed: int) -> tuple[MeshClass, ShardedLayout]:
    gpus = whole(row, "n_gpus")
    tp, pp = whole(row, "tp"), whole(row, "pp")
    cp, ep = whole(row, "cp", 1), whole(row, "ep", 1)
    local = min(gpus, per_node)
    if gpus % (tp * pp * cp) or gpus % local:
        raise SkipRow(f"the printed degrees do not tile: tp {tp} x pp {pp} x cp {cp} on {gpus} GPUs")
    dp = gpus // (tp * pp * cp)
    early = framework.startswith("megatron-lm")  # of 2021 and 2022: no distributed optimizer
    zero, shard = (0, dp) if early else _sharding(row, dp * cp)
    recompute = _recompute(row)
    layout = ShardedLayout(
        dp=dp,
        cp=cp,
        tp=tp,
        pp=pp,
        vpp=_virtual_stages(row, pp, rows),
        ep=ep,
        zero=zero,
        shard_size=shard,
        sequence_parallel=tp > 1 and (not early or "sequence parallel" in row["act_recompute"]),
        micro_batch=packed * whole(row, "mbs_seqs", 1),
        recompute=recompute,
        offload_activations="offload" in row["act_recompute"],
    )
    return MeshClass(gpus // local, local), layout


def _sharding(row: Row, ranks: int) -> tuple[int, int]:
    """Return ZeRO level and shard group: FSDP by name, else a distributed optimizer."""
    printed = row["sharding"]
    group = re.fullmatch(r"Megatron-FSDP shard=(\d+)", printed)
    if group:
        return 3, min(int(group.group(1)), ranks)
    if "SHARD_GRAD_OP" in printed:
        return 2, ranks
    return (3 if printed.startswith("FSDP ") or printed == "FSDP2" else 1), ranks


def _recompute(row: Row) -> str:
    printed = row["act_recompute"]
    if printed.startswith("full"):
        return "full"
    if re.match(r"selective (attention|op|core_attn)|per-op", printed):
        return "selective"
    if printed in ("", "none"):
        return "none"
    raise SkipRow(f"recomputation of single modules ({printed}), which rpegc does not plan")


def _virtual_stages(row: Row, pp: int, rows: list[Row]) -> int:
    """Return vpp: as printed, else as another release of the same table prints it for the same model, else 1."""
    if pp == 1:
        return 1
    twins = [other["vpp"] for other in rows if (other["model"], other["pp"]) == (row["model"], row["pp"])]
    stated = [vpp for vpp in (row["vpp"], *twins) if vpp]
    unstated = LLAMA3_VIRTUAL_STAGES if row["framework"].startswith("Llama 3") else 1
    return whole({"vpp": stated[0]}, "vpp") if stated else unstated


def _seconds(row: Row, architecture: Architecture, tokens: int, sequence: int) -> float:
    """Return the step's seconds: as printed, from tokens per second, or from FLOP/s by the source's own count.

    Per token and layer, attention is 12 s H where the source counts the whole square (NeMo 24.0x, the Megatron
    papers), 6 s H where it counts the causal half (Llama 3). The Megatron papers count recomputation (4/3).
    """
    if row["step_time_s"]:
        return number(row, "step_time_s")
    gpus = whole(row, "n_gpus")
    if row["tokens_per_s_per_gpu"]:
        return tokens / number(row, "tokens_per_s_per_gpu") / gpus
    a = architecture
    products = 6.0 * (a.active_parameters - (0 if a.tied_embeddings else a.embedding_parameters))
    square = 12.0 * a.layers * a.heads * a.head_dim * sequence
    if row["model_tflops_per_gpu"]:
        half = 0.5 if row["framework"].startswith("Llama 3") else 1.0
        return tokens * (products + half * square) / number(row, "model_tflops_per_gpu") / 1e12 / gpus
    if row["framework"] == "Megatron-LM" and row["hw_tflops_per_gpu"]:  # arXiv 2104.04473, equation 3
        head = 6.0 * a.hidden * a.vocabulary
        counted = (products - head + square) * 4.0 / 3.0 + head
        return tokens * counted / number(row, "hw_tflops_per_gpu") / 1e12 / gpus
    raise SkipRow("neither step time nor throughput is stated (the run ended out of memory)")


def with_values(hardware: Machine, values: Mapping[str, float]) -> Machine:
    """Return a machine whose accelerator has other figures; `values` by field name."""
    if not values:
        return hardware
    changed = {name: replace(getattr(hardware.accelerator, name), value=value) for name, value in values.items()}
    return replace(hardware, accelerator=replace(hardware.accelerator, **changed))
