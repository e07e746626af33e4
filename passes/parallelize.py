"""Attach how stages may be split: the layout domain of each GPU stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from passes.quantize import PRECISION
from rpegc.errors import InputError
from rpegc.ir.fusion import composites
from rpegc.ir.graph import Graph, Scalar, Stage
from rpegc.rewrite import Context, ModelFacts

TILES: Mapping[str, tuple[str, Callable[[int, ModelFacts], bool]]] = {
    "tp": ("must divide the heads", lambda value, model: model.heads % value == 0),
    "ulysses": ("must divide the heads", lambda value, model: model.heads % value == 0),
    "pp": ("needs a layer for each part", lambda value, model: value <= model.layers),
    "vpp": ("needs a layer for each part", lambda value, model: value <= model.layers),
    "ep": ("must divide the experts", lambda value, model: model.experts % value == 0 if model.experts else value == 1),
    "etp": ("needs experts", lambda value, model: model.experts > 0 or value == 1),
}
"""Degrees that the model alone limits, each with its law. What depends on the mesh is left to the search."""


@dataclass(frozen=True, slots=True)
class Parallelize:
    """Attach to each GPU stage the values of each layout field that space, target and model have in common.

    Where the target has a menu of its own for a field, that stands for the space's list. The graph remembers the
    training engine whose layouts these are.

    Law: only domains are added, so no rewrite is recorded. Members of a composite run under one layout: they get
    the values that all of them may take; where a field has none, the graph has no alternative. A dense model has no
    experts to split: `ep` and `etp` are 1 whatever the space lists. Raises `InputError` if the space lists no
    value that is left.
    """

    name: ClassVar[str] = "parallelize"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the one graph with domains, or none."""
        domains = {stage.name: _domain(stage, context) for stage in graph.stages if stage.op.on_gpus}
        for members in composites(graph).values():
            together = _in_common([domains[stage.name] for stage in members])
            if not all(values for _, values in together):
                return ()
            domains |= dict.fromkeys((stage.name for stage in members), together)
        stages = tuple(replace(stage, layouts=domains.get(stage.name, ())) for stage in graph.stages)
        return (replace(graph, stages=stages, engine=context.capabilities.engine),)


Domain = tuple[tuple[str, tuple[Scalar, ...]], ...]


def _in_common(domains: list[Domain]) -> Domain:
    """Return the values that all domains list, in the order of the first."""
    others = [dict(domain) for domain in domains[1:]]
    return tuple((name, tuple(v for v in values if all(v in o[name] for o in others))) for name, values in domains[0])


def _domain(stage: Stage, context: Context) -> Domain:
    fields = sorted(field for op, field in context.space if op == stage.op.value)
    return tuple((field, _values(stage, field, context)) for field in fields)


def _values(stage: Stage, field: str, context: Context) -> tuple[Scalar, ...]:
    model = context.models[stage.model]
    if field in ("ep", "etp") and model.experts == 0:
        return (1,)
    key = (stage.op.value, field)
    listed = tuple(dict.fromkeys(context.capabilities.menus.get(key, context.space[key])))
    if field == PRECISION and stage.attribute(PRECISION):
        listed = (stage.attribute(PRECISION),)  # a rewrite has decided it
    accepted = context.capabilities.accepted(stage.op.value, stage.model, field) or listed
    both = tuple(value for value in listed if value in accepted)
    law, tiles = TILES.get(field, ("", lambda value, model: True))
    left = tuple(value for value in both if not isinstance(value, int) or tiles(value, model))
    if not left:
        why = f"{context.capabilities.name} accepts {_listing(accepted)}"
        if both:
            why = f"{field} {law} of {model.architecture} ({model.heads} heads, {model.layers} layers)"
        message = f"stage `{stage.name}`: the search space lists {field} in {_listing(listed)}, but {why}"
        raise InputError(message, stage.position)
    return left


def _listing(values: tuple[Scalar, ...]) -> str:
    return ", ".join(str(value) for value in values)
