"""The points of a sweep: a pipeline's own text with some keys replaced, checked like any file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rpegc.errors import InputError
from rpegc.frontend.load import load_pipeline
from rpegc.frontend.pipeline import Pipeline
from rpegc.search.meshes import mesh_menu

Document = dict[str, Any]
MOST_POINTS = 10_000
"""Points of one sweep; more is a mistake in the axes."""

WORKLOAD_AXES = ("response-tokens", "batch")
"""Axes that change what a step does: plans of different workloads do not compete."""


@dataclass(frozen=True, slots=True)
class Point:
    """One pipeline of a sweep: its values by axis, and its text as JSON (which is YAML)."""

    values: dict[str, str]
    text: str


def _set_nodes(document: Document, value: str) -> None:
    document["cluster"]["nodes"] = _count("--nodes", value)


def _set_staleness(document: Document, value: str) -> None:
    document.setdefault("allow", {})["max_staleness"] = _count("--staleness", value, least=0)


def _set_batch(document: Document, value: str) -> None:
    document["workload"]["prompts_per_step"] = _count("--batch", value)


def _set_target(document: Document, value: str) -> None:
    document["target"] = value


def _set_hardware(document: Document, value: str) -> None:
    document["cluster"]["hardware"] = value


def _set_response_tokens(document: Document, value: str) -> None:
    """Scale the lengths to another mean: the distribution keeps its shape, so p99 and max scale too."""
    mean = _count("--response-tokens", value)
    lengths = document["workload"]["response_tokens"]
    if lengths.get("fixed") is not None:
        lengths["fixed"] = mean
    elif lengths.get("mean") is not None:
        factor = mean / lengths["mean"]
        lengths["mean"] = float(mean)
        if lengths.get("p99") is not None:
            lengths["p99"] *= factor
        lengths["max"] = max(1, round(lengths["max"] * factor))
    else:
        raise InputError("--response-tokens needs `workload.response_tokens` with a mean or a fixed length")


AXES: Mapping[str, Callable[[Document, str], None]] = {
    "target": _set_target,
    "hardware": _set_hardware,
    "nodes": _set_nodes,
    "staleness": _set_staleness,
    "response-tokens": _set_response_tokens,
    "batch": _set_batch,
}
"""The axes in the order in which rows are sorted, each with the edit that it makes."""


def points(path: Path, axes: Mapping[str, tuple[str, ...]]) -> Iterator[Point]:
    """Yield every combination of values, the last axis fastest. Raises InputError for a value of the wrong kind."""
    pipeline = load_pipeline(path)
    document = pipeline.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if "cluster" in document and document["cluster"].get("pools") and {"nodes", "hardware"} & set(axes):
        raise InputError("a cluster of pools has no one number of nodes and no one hardware to sweep over")
    names = [name for name in AXES if name in axes]
    combinations = 1
    for name in names:
        combinations *= len(axes[name])
    if combinations > MOST_POINTS:
        raise InputError(f"{combinations:,} points are too many for one sweep; at most {MOST_POINTS:,}")
    for values in product(*(axes[name] for name in names)):
        edited = copy.deepcopy(document)
        for name, value in zip(names, values, strict=True):
            AXES[name](edited, value)
        yield Point(dict(zip(names, values, strict=True)), json.dumps(edited, ensure_ascii=False))


def read_axis(option: str, text: str) -> tuple[str, ...]:
    """Read the values of an axis, separated by commas. Raises InputError for an empty or repeated one."""
    values = tuple(part.strip() for part in text.split(","))
    if "" in values or len(set(values)) != len(values):
        raise InputError(f"{option} {text!r}: write values that differ, separated by commas, such as 4,8,16")
    return values


def front_axes(pipeline: Pipeline, axes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the axes of a Pareto front: where not given, up to the pipeline's own nodes and staleness."""
    found = dict(axes)
    if "nodes" not in found and pipeline.spec.cluster.pools is None:
        menu = mesh_menu(pipeline.nodes, pipeline.machine.gpus_per_node, "powers", slices=False)
        counts = {mesh.nodes for mesh in menu if mesh.gpus_per_node == pipeline.machine.gpus_per_node}
        found["nodes"] = tuple(str(count) for count in sorted(counts))
    found.setdefault("staleness", tuple(str(k) for k in range(min(pipeline.spec.allow.max_staleness, 8) + 1)))
    return found


def _count(option: str, value: str, least: int = 1) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) < least:
        raise InputError(f"{option}: wants whole numbers of at least {least}, got `{value}`")
    return int(value)
