"""From a YAML file to a `Pipeline`: read, check types, check rules, look up machine and models, check stages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rpegc.architecture import Architecture, from_document
from rpegc.errors import InputError
from rpegc.frontend.expand import expand
from rpegc.frontend.hf_config import load_architecture
from rpegc.frontend.histogram import read_histogram
from rpegc.frontend.pipeline import Histogram, Pipeline
from rpegc.frontend.presets import stage_recipes
from rpegc.frontend.rollouts import SUFFIXES, read_rollouts
from rpegc.frontend.rules import check_rules
from rpegc.frontend.schema import PipelineSpec, validate_document
from rpegc.frontend.yaml_source import YamlDocument, parse_yaml, read_yaml
from rpegc.hardware import Pool, load_machine

LENGTH_KEYS = ("prompt_tokens", "response_tokens")


def load_pipeline(path: Path) -> Pipeline:
    """Read and check a pipeline file; paths in it that must be read now are relative to its folder.

    Raises `InputError` for the first thing that is wrong, with its place in the file.
    """
    return _pipeline(read_yaml(path), path.parent)


def pipeline_from_text(text: str, name: str = "pipeline.yaml", folder: Path = Path()) -> Pipeline:
    """Check a pipeline given as text; `name` stands for the file in messages. Raises as `load_pipeline`."""
    return _pipeline(parse_yaml(text, name), folder)


def restore_pipeline(resolved: Mapping[str, Any]) -> Pipeline:
    """Rebuild a pipeline from `Pipeline.resolved()`, as a plan holds it: no other file is read but the catalogue's.

    Raises `InputError` if the mapping is not a resolved pipeline.
    """
    try:
        document = {key: _tuples(value) for key, value in resolved.items()}
        architectures = {role: from_document(facts) for role, facts in document.pop("architectures").items()}
        histograms: dict[str, Histogram] = document.pop("histograms")
        document.pop("loss", None)  # follows from the rest
        # `resolved` copies what `like` stands for; the file's own form has either.
        document["models"] = {
            role: {"like": model["like"]} if model["like"] else model for role, model in document["models"].items()
        }
        spec = PipelineSpec.model_validate(document)
    except (KeyError, TypeError, AttributeError, ValidationError, ValueError) as problem:
        raise InputError(f"this is not a resolved pipeline: {str(problem).splitlines()[0]}") from None
    return Pipeline(spec, architectures, _pools(spec, None), histograms)


def _tuples(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return value


def _pipeline(document: YamlDocument, folder: Path) -> Pipeline:
    spec = validate_document(document)
    check_rules(spec, document)
    pipeline = Pipeline(
        spec=spec,
        architectures=_architectures(spec, document, folder),
        pools=_pools(spec, document),
        histograms=_histograms(spec, document, folder),
        document=document,
    )
    _check_positions(pipeline)
    pipeline.prompt_lengths()
    pipeline.response_lengths()
    expand(pipeline)
    return pipeline


def _pools(spec: PipelineSpec, document: YamlDocument | None) -> tuple[Pool, ...]:
    """Look up the machines, and check what is asked of them; without a document only the first."""
    cluster = spec.cluster
    if cluster.pools is None:
        return (_pool("", str(cluster.hardware), cluster.nodes or 0, ("cluster",), spec, document),)
    named = (("train", cluster.pools.train), ("rollout", cluster.pools.rollout))
    return tuple(_pool(n, p.hardware, p.nodes, ("cluster", "pools", n), spec, document) for n, p in named)


def _pool(
    name: str, hardware: str, nodes: int, path: tuple[str, ...], spec: PipelineSpec, document: YamlDocument | None
) -> Pool:
    if document is None:
        return Pool(name, load_machine(hardware), nodes)
    machine = load_machine(hardware, document.value_position((*path, "hardware")))
    if machine.system_nodes and nodes > machine.system_nodes:
        message = f"{machine.name} has {machine.system_nodes} nodes; {'.'.join(path)}.nodes is {nodes}"
        raise InputError(message, document.value_position((*path, "nodes")))
    if spec.objective == "usd" and machine.usd_per_gpu_hour is None and spec.cluster.usd_per_gpu_hour is None:
        message = f"objective usd needs a price, and none is known for {machine.name}"
        raise InputError(
            message, document.value_position(("objective",)), "give cluster.usd_per_gpu_hour, or use gpu_hours"
        )
    return Pool(name, machine, nodes)


def _architectures(spec: PipelineSpec, document: YamlDocument, folder: Path) -> dict[str, Architecture]:
    """Load each role's model; a role that is `like` another has the other's."""
    loaded: dict[str, Architecture] = {}
    for role in spec.models:
        base = role
        while spec.models[base].like is not None:
            base = str(spec.models[base].like)
        if base not in loaded:
            position = document.value_position(("models", base, "config"))
            loaded[base] = load_architecture(str(spec.models[base].config), folder, position)
        loaded[role] = loaded[base]
    return {role: loaded[role] for role in spec.models}


def _histograms(spec: PipelineSpec, document: YamlDocument, folder: Path) -> dict[str, Histogram]:
    histograms = {}
    for key in LENGTH_KEYS:
        named = getattr(spec.workload, key).histogram
        if named is not None:
            position = document.value_position(("workload", key, "histogram"))
            if named.endswith(SUFFIXES):
                histograms[key] = read_rollouts(folder / named, named, key, position)
            else:
                histograms[key] = read_histogram(folder / named, named, position)
    return histograms


def _check_positions(pipeline: Pipeline) -> None:
    """The longest sequence fits the positions of every model, but of one whose stages all have lengths of their own."""
    workload = pipeline.spec.workload
    own = {recipe.model: True for recipe in stage_recipes(pipeline.spec)}
    for recipe in stage_recipes(pipeline.spec):
        own[recipe.model] &= "response_max" in dict(recipe.attributes)
    prompt, response = workload.prompt_tokens.longest, workload.response_tokens.longest
    for role, architecture in pipeline.architectures.items():
        if prompt + response > architecture.max_positions and not own.get(role, False):
            message = (
                f"longest prompt + longest response must be at most the positions of `{role}` ({architecture.name}): "
                f"{prompt} + {response} = {prompt + response} > {architecture.max_positions}"
            )
            hint = f"responses may have at most {max(0, architecture.max_positions - prompt)} tokens"
            key = "fixed" if workload.response_tokens.fixed is not None else "max"
            document = pipeline.document
            place = document.value_position(("workload", "response_tokens", key)) if document else None
            raise InputError(message, place, hint)
