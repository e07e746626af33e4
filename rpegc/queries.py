"""Questions about a pipeline or about rpegc itself that need no search."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import backends
import passes
import search_spaces
from backends.site import load_site, site_names
from rpegc.catalog import catalogue_models
from rpegc.compiler import structures
from rpegc.cost.work import stage_works
from rpegc.cost.work_depth import stage_depth, stage_work_flops
from rpegc.errors import InputError, guess
from rpegc.frontend.expand import expand
from rpegc.frontend.hf_config import load_architecture
from rpegc.frontend.load import load_pipeline
from rpegc.frontend.presets import all_presets
from rpegc.hardware import load_machine, machine_names
from rpegc.ir.text import print_graph
from rpegc.ir.work_depth import step_work_depth
from rpegc.setting import Options, setting_of
from rpegc.units import format_bytes, format_count

Row = dict[str, str]
"""What is known of one thing: its name first."""


def _models() -> Iterator[Row]:
    for name in catalogue_models():
        model = load_architecture(name, Path(), None)
        yield {
            "name": name,
            "parameters": format_count(model.parameters),
            "active": format_count(model.active_parameters),
            "positions": str(model.max_positions),
        }


def _hardware() -> Iterator[Row]:
    for name in machine_names():
        machine = load_machine(name)
        yield {
            "name": name,
            "node": f"{machine.gpus_per_node} x {machine.accelerator.name}",
            "GPU memory": format_bytes(machine.accelerator.hbm_bytes.value),
            "host memory": format_bytes(machine.host_bytes.value),
            "site": machine.site,
        }


def _presets() -> Iterator[Row]:
    for preset in all_presets().values():
        papers = re.findall(r"arXiv ([\d.]+\d)", preset.source)
        yield {"name": preset.name, "what": preset.what, "arXiv": ", ".join(papers)}


def _names(names: Iterable[str]) -> Iterator[Row]:
    return ({"name": name} for name in names)


LISTS: dict[str, Callable[[], Iterator[Row]]] = {
    "models": _models,
    "hardware": _hardware,
    "presets": _presets,
    "passes": lambda: ({"name": p.name, "class": p.semantics} for p in passes.default_passes()),
    "backends": lambda: ({"name": n, "version": backends.backend(n).version} for n in backends.backend_names()),
    "spaces": lambda: _names(search_spaces.space_names()),
    "sites": lambda: ({"name": name, "what": load_site(name).description} for name in site_names()),
}


def known(what: str) -> tuple[Row, ...]:
    """Return what this version knows of one kind, a row each; raises InputError for an unknown kind."""
    if what not in LISTS:
        raise InputError(f"nothing called `{what}` can be listed", hint=guess(what, LISTS))
    return tuple(LISTS[what]())


def check_file(path: Path) -> tuple[str, ...]:
    """Read a pipeline with all that it names, run the passes, and return what was understood, one line each."""
    pipeline = load_pipeline(path)
    graphs = structures(setting_of(pipeline, Options()))
    workload = pipeline.workload_facts()
    lines = [
        f"{path}: fine",
        f"  {pipeline.spec.algorithm} on "
        + " and ".join(f"{pool.nodes} nodes of {pool.machine.name}" for pool in pipeline.pools),
    ]
    for role, architecture in pipeline.architectures.items():
        active = ""
        if architecture.experts:
            active = f", {format_count(architecture.active_parameters)} of them active"
        lines.append(f"  {role}: {architecture.name}, {format_count(architecture.parameters)} parameters{active}")
        lines += [f"    not priced: {what}" for what in architecture.left_out]
    lines.append(
        f"  {workload.sequences_per_step} sequences a step, mean {workload.mean_response_tokens:.0f} response tokens, "
        f"{workload.updates_per_step} optimizer updates"
    )
    return (*lines, f"  {len(graphs)} structures for target {pipeline.spec.target}")


def show_file(path: Path, variants: bool = False) -> str:
    """Return the RPEG of a pipeline as text, or of every structure that the passes make of it."""
    pipeline = load_pipeline(path)
    if not variants:
        return print_graph(expand(pipeline))
    graphs = structures(setting_of(pipeline, Options()))
    return "\n".join(print_graph(graph) for graph in graphs)


def work_depth_file(path: Path) -> str:
    """Return a table of work and depth of each stage, and of the step with every stage on devices of its own."""
    pipeline = load_pipeline(path)
    graph = expand(pipeline)
    works = stage_works(graph, setting_of(pipeline, Options()).work)
    work = {name: stage_work_flops(stage) for name, stage in works.items()}
    depth = {name: stage_depth(stage) for name, stage in works.items()}
    step = step_work_depth(graph, work, depth)
    rows = [("stage", "work (FLOP)", "depth (operations)")]
    rows += [(name, f"{work[name]:.4g}", f"{depth[name]:.4g}") for name in works]
    rows.append(("step, stages in turn", f"{float(step.work):.4g}", f"{float(step.serial_depth):.4g}"))
    rows.append(("step, devices of its own each", f"{float(step.work):.4g}", f"{float(step.depth):.4g}"))
    width = max(len(row[0]) for row in rows)
    lines = [f"{name:<{width}}  {flops:>12}  {operations:>18}" for name, flops, operations in rows]
    return "\n".join([*lines, "longest chain: " + " -> ".join(step.chain)]) + "\n"
