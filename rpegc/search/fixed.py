"""Layout fields that the user fixed: the domain of a stage shrinks to the given value before anything is priced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rpegc.errors import InputError, SourcePosition, guess
from rpegc.ir.graph import Graph, Op, Scalar, Stage
from rpegc.target import ENGINE_FIELDS, SHARDED_FIELDS, WORDS, Capabilities, Tie

DERIVED = ("dp", "replicas")
"""Fields that follow from the mesh and the other degrees."""

LARGEST_COUNT = 1_000_000
"""No count of a layout is larger: sums and products of fields stay far inside 64 bits."""

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


def check_ties(graph: Graph, fixed: Fixed, ties: tuple[Tie, ...]) -> None:
    """Raise InputError where two stages that the target runs with one value of a field were given different ones."""
    for tie in ties:
        for field in tie.fields:
            given = [(name, *fixed[name][field]) for name in tie.stages if field in fixed.get(name, {})]
            for name, value, position in given[1:]:
                if value != given[0][1]:
                    message = (
                        f"`fix.{name}.{field}` is {value} and `fix.{given[0][0]}.{field}` is {given[0][1]}: "
                        f"the target runs both stages with one value [{tie.source}]"
                    )
                    raise InputError(message, position)


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
    accepted = capabilities.accepted(stage.op.value, stage.model, field) or WORDS.get(field, ())
    if accepted and value not in accepted:
        listing = ", ".join(str(choice) for choice in accepted)
        message = f"{where}: {capabilities.name} accepts {listing} here, not {value}"
        raise InputError(message, position)
    _check_kind(where, field, value, dict(stage.layouts)[field][0], position)


COUNTS_FROM_ZERO = ("shard_size", "micro_batch", "token_budget")
"""Integer fields in which 0 has a meaning: the whole mesh, and "the other form of batching"."""


def _check_kind(where: str, field: str, value: Scalar, example: Scalar, position: SourcePosition | None) -> None:
    """Raise InputError unless the value is of the field's kind: a switch, a word, a share or a count."""
    if isinstance(example, bool | str):
        if type(value) is not type(example):
            raise InputError(f"{where}: must be like {example!r}, got {value!r}", position)
    elif isinstance(value, bool | str):
        raise InputError(f"{where}: must be a number, got {value!r}", position)
    elif isinstance(example, float):
        if not 0 < value <= 1:
            raise InputError(f"{where}: must lie above 0 and at most at 1, got {value}", position)
    else:
        least = 0 if field in COUNTS_FROM_ZERO else 1
        if not isinstance(value, int) or not least <= value <= LARGEST_COUNT:
            raise InputError(f"{where}: must be a whole number of at least {least}, got {value}", position)
