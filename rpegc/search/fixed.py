"""Layout fields that the user fixed: the domain of a stage shrinks to the given value before anything is priced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rpegc.errors import InputError, SourcePosition, guess
from rpegc.ir.graph import Graph, Op, Scalar, Stage
from rpegc.target import ENGINE_FIELDS, SHARDED_FIELDS, WORDS, Capabilities

DERIVED = ("dp", "replicas")
"""Fields that follow from the mesh and the other degrees."""

Fixed = Mapping[str, Mapping[str, tuple[Scalar, SourcePosition | None]]]
"""By stage and field: the value, and where the user wrote it."""


def with_fixed(graph: Graph, fixed: Fixed, capabilities: Capabilities) -> Graph:
    """Return the graph with the domains of fixed fields reduced to their values.

    Raises InputError for a stage or field that does not exist, and for a value that the target does not accept. A
    stage that some structures lack (the passes dropped it) is passed over there.
    """
    for name, values in fixed.items():
        if graph.has(name):
            stage = graph.stage(name)
            for field, (value, position) in values.items():
                _check(stage, field, value, position, capabilities)
                domain = dict(stage.layouts) | {field: (value,)}
                # The stage now points at what the user fixed: that is the line to show if no layout is left.
                stage = replace(stage, layouts=tuple(sorted(domain.items())), position=position)
            graph = graph.replace_stage(stage)
    return graph


def check_stages(fixed: Fixed, graph: Graph, position_of: Mapping[str, SourcePosition | None]) -> None:
    """Raise InputError for a fixed stage that the pipeline does not have, or that has no layout."""
    names = [stage.name for stage in graph.stages if stage.op.on_gpus]
    for name in fixed:
        if name not in names:
            raise InputError(f"`fix.{name}`: no stage of that name has a layout", position_of[name], guess(name, names))


def _check(
    stage: Stage, field: str, value: Scalar, position: SourcePosition | None, capabilities: Capabilities
) -> None:
    fields = ENGINE_FIELDS if stage.op is Op.GENERATE else SHARDED_FIELDS
    free = [name for name in fields if name not in DERIVED]
    where = f"`fix.{stage.name}.{field}`"
    if field in DERIVED:
        raise InputError(f"{where}: {field} follows from the mesh and the other degrees", position)
    if field not in free:
        raise InputError(f"{where}: a {stage.op.value} stage has no such layout field", position, guess(field, free))
    accepted = capabilities.field_values.get((stage.op.value, field), WORDS.get(field, ()))
    if accepted and value not in accepted:
        listing = ", ".join(str(choice) for choice in accepted)
        message = f"{where}: {capabilities.name} accepts {listing} here, not {value}"
        raise InputError(message, position)
    example = dict(stage.layouts)[field][0]
    if isinstance(example, bool) != isinstance(value, bool) or isinstance(example, str) != isinstance(value, str):
        raise InputError(f"{where}: must be like {example!r}, got {value!r}", position)
    if not isinstance(value, bool | str) and value < 0:
        raise InputError(f"{where}: must not be negative, got {value}", position)
