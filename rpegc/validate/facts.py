"""What published tables call models, GPUs, frameworks and precisions, as the catalogue and the price classes do."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from rpegc.architecture import Architecture, paper_reference
from rpegc.catalog import catalogue_models
from rpegc.frontend.hf_config import load_architecture
from rpegc.hardware import Figure, Machine, load_machine
from rpegc.validate.table import Row, SkipRow

# Layers, hidden size, heads: github.com/mosaicml/llm-foundry scripts/train/yamls/pretrain.
_MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
# Layers, hidden, intermediate, heads, KV heads, vocabulary of plain two-matrix models: NVIDIA NeMo recipes (GPT3,
# Nemotron), arXiv 2509.14233 (Apertus).
_PLAIN = {
    "gpt3-5b": (24, 4096, 16384, 32, 32, 51200),
    "gpt3-20b": (44, 6144, 24576, 48, 48, 51200),
    "gpt3-175b": (96, 12288, 49152, 96, 96, 51200),
    "nemotron-8b": (32, 4096, 16384, 32, 32, 256000),
    "nemotron-22b": (40, 6144, 24576, 48, 48, 256000),
    "nemotron-340b": (96, 18432, 73728, 96, 8, 256000),
    "apertus-8b": (32, 4096, 21504, 32, 8, 131072),
    "apertus-70b": (80, 8192, 43008, 64, 8, 131072),
}
_FOREIGN = (
    ("deepseek-?v4", "compressed sparse attention, which rpegc does not price"),
    ("nemotron-3-ultra|nemotron-3-5", "architecture not published for certain"),
)
# What the tables call models that the catalogue has under the repository's name.
_PUBLISHED = (
    (r"deepseek-?v3(-\(w/o?-mtp\))?", "deepseek-ai/DeepSeek-V3"),
    (r"kimi-k2", "moonshotai/Kimi-K2-Instruct"),
    (r"nemotron-3-nano(-30b-a3b)?", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    (r"nemotron-3-super", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"),
)
# Tokens beyond the next that the recipes of Megatron-Bridge predict by default: the FLOP per token that the tables
# print say so (DeepSeek-V3 260 GFLOP with, 250 without; Nemotron 3 Super 85, where the model alone has 76).
_PREDICTED = {"deepseek-ai/DeepSeek-V3": 1, "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": 2}
FOREIGN_MIXTURES = re.compile(r"deepseek|kimi|moonlight|gpt.oss|nemotron.3|mixtral|a\d+b")
"""Names of mixtures of experts, for the part of a table that a skipped row belongs to."""

_MEGATRON_SHAPE = re.compile(r"layers (\d+) hidden (\d+) heads (\d+)")

GPUS = (  # first match wins; values are keys of `machine`
    (r"GH200", "gh200-alps"),
    (r"GB300", "gb300-nvl72"),
    (r"GB200", "gb200-nvl72"),
    (r"\bB300", "b300"),
    (r"\bB200", "b200"),
    (r"A100.*40|A100-40", "a100-40g"),
    (r"A100", "a100-80g"),
    (r"H100.*(HBM2e|500W)", "h100-500w"),
    (r"H100", "h100-dgx"),
    (r"H200", "h200-dgx"),
    (r"H800", "h800"),
    (r"H20\b", "h20"),
)
# Parts that are not in the catalogue: base machine, FLOP/s in training, B/s of element-wise kernels.
_VARIANTS = {"h100-500w": ("h100-dgx", 510e12, 2.0e12)}
_SOURCE = "fitted to published training rows of this part (torchtitan)"

FRAMEWORKS = (  # pattern of the `framework` column, price class, engine class
    (r"Composer/FSDP.*", "llm-foundry", "fsdp"),
    (r"Megatron-Bridge/Megatron-Core", "megatron-bridge", "megatron"),
    (r"NeMo/Megatron-Core", "nemo", "megatron"),
    (r"Megatron-LM \(swiss-ai fork\)", "megatron-bridge", "megatron"),
    (r"Llama 3 \(Meta.*", "nemo", "megatron"),
    (r"(NeMo/)?Megatron-LM", "megatron-lm", "megatron"),
    (r"torchtitan", "torchtitan", "fsdp"),
    (r"prime-rl.*", "prime-rl", "fsdp"),
)


def architecture_of(row: Row) -> tuple[str, Architecture]:
    """Return a name that is the same wherever the model is published, and its architecture."""
    printed = row["model"]
    name = re.sub(r"^[\w.-]+/(?=\S+$)", "", printed).lower().replace("_", "-").replace(" ", "-")  # without its owner
    stated = _MEGATRON_SHAPE.search(row.get("notes", ""))
    if stated:
        layers, hidden, heads = (int(value) for value in stated.groups())
        return _named(name), paper_reference(layers, hidden, 4 * hidden, heads, 51200)
    known = _known(name)
    if known is None:
        for pattern, reason in _FOREIGN:
            if re.search(pattern, name):
                raise SkipRow(f"{printed}: {reason}")
        raise SkipRow(f"unknown model {printed}")
    return known


def _named(name: str) -> str:
    """Return one name for the models of the Megatron papers, which two papers call differently."""
    sizes = {"turing-530b": "gpt-530b", "gpt-529.6b": "gpt-530b", "megatron-1t": "gpt-1t", "gpt-1008b": "gpt-1t"}
    return sizes.get(name, name)


@cache
def _known(name: str) -> tuple[str, Architecture] | None:
    size = name.removeprefix("mpt-")
    if name.startswith("mpt-") and size in _MPT:
        layers, hidden, heads = _MPT[size]
        return name, paper_reference(layers, hidden, 4 * hidden, heads, 50368)
    if name in _PLAIN:
        layers, hidden, intermediate, heads, kv_heads, vocabulary = _PLAIN[name]
        plain = paper_reference(layers, hidden, intermediate, heads, vocabulary)
        return name, replace(plain, kv_heads=kv_heads, tied_embeddings=name.startswith("gpt3"))
    llama = re.fullmatch(r"(?:meta-)?llama-?([23])(?:\.1)?-(\d+)b(?:-hf)?", name)
    if llama:
        series, billions = llama.groups()
        name = f"llama-2-{billions}b-hf" if series == "2" else f"llama-3.1-{billions}b"
    for pattern, reference in _PUBLISHED:
        if re.fullmatch(pattern, name):
            published = load_architecture(reference, Path("."), None)
            depth = 0 if name.endswith("(w/o-mtp)") else _PREDICTED.get(reference, 0)
            return reference.split("/")[-1].lower(), with_prediction(published, depth)
    for reference in catalogue_models():
        if reference.split("/")[-1].lower() == name:
            return name.removesuffix("-instruct-2507"), load_architecture(reference, Path("."), None)
    return None


def with_prediction(architecture: Architecture, depth: int) -> Architecture:
    """Return a model that also predicts `depth` tokens beyond the next, as pretraining recipes train it.

    Each takes one more layer of attention and experts, and a pass through the head: the vocabulary counts once more.
    """
    if not depth:
        return architecture
    a = architecture
    first, *others = a.own_mixers
    halves = depth if a.bare_layers else 0  # where a mixer and its experts are layers of their own
    return replace(
        a,
        layers=a.layers + depth + halves,
        bare_layers=a.bare_layers + halves,
        own_mixers=(replace(first, layers=first.layers + depth), *others),
        vocabulary=a.vocabulary * (1 + depth),
    )


def gpu_of(row: Row) -> str:
    """Return the key of the row's GPU."""
    printed = row["gpu"]
    for pattern, key in GPUS:
        if re.search(pattern, printed):
            return key
    raise SkipRow(f"no machine of the catalogue has the GPU {printed}")


@cache
def machine(key: str) -> Machine:
    """Return a machine by key: one of the catalogue, or a variant of one."""
    if key not in _VARIANTS:
        return load_machine(key)
    base, sustained, achieved = _VARIANTS[key]
    found = load_machine(base)
    accelerator = replace(
        found.accelerator,
        gemm_sustained=Figure(sustained, "fitted", _SOURCE),
        hbm_achieved=Figure(achieved, "assumed", _SOURCE),
    )
    return replace(found, accelerator=accelerator)


def framework_of(row: Row) -> tuple[str, str]:
    """Return price class and engine class of the row's framework."""
    for pattern, name, engine in FRAMEWORKS:
        if re.fullmatch(pattern, row["framework"]):
            return _release(name, row), engine
    raise SkipRow(f"unknown framework {row['framework']}")


def _release(name: str, row: Row) -> str:
    """Return the price class of a framework in the release and task of the row."""
    if name == "prime-rl" and row["task"].startswith("sft"):
        return "prime-rl sft"
    if name == "megatron-lm" and re.search(r"2104\.04473|@v2\.5", row["source"]):  # before overlap in the backward pass
        return "megatron-lm 2021"
    if name == "torchtitan" and re.search(r"202[5-9]-", row.get("version", "")):
        return "torchtitan 2025"
    return name


def precision_flags(row: Row) -> frozenset[str]:
    """Return the engine flags of the row's precision."""
    printed = row["precision"].lower()
    if re.fullmatch(r"((amp_)?bf16|fp16).*", printed):
        return frozenset()
    if printed.startswith("nvfp4"):
        return frozenset({"nvfp4"})
    if "rowwise" in printed:
        return frozenset({"fp8_rowwise"})
    if re.match(r"(amp_|mx)?(fp8|float8)", printed):
        return frozenset({"fp8"})
    raise SkipRow(f"precision {row['precision'] or 'not stated'}")
