"""Conditions of `--why-not`: KEY=VALUE, read into edits of the resolved pipeline and a filter of structures.

| key | condition |
|---|---|
| `tp`, `train.tp`, `update_actor.tp`, `actor.tp` | a layout field: of all stages, of an op, a stage, a role |
| `rollout.nodes`, `rollout.gpus` | the size of the mesh that a stage sits on |
| `placement`, `mode`, `engine` | a placement pattern, a launch mode, a training engine of the target |
| `staleness` | weight versions between generation and training |
| a pass by its name | `on` or `off` |
| `nodes`, `hardware`, `target`, `objective` | what the pipeline says |
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import passes
from passes.vocabulary import publications
from rpegc.errors import InputError, guess
from rpegc.frontend.expand import expand
from rpegc.frontend.pipeline import Pipeline
from rpegc.ir.graph import Graph, Op, Scalar, Stage
from rpegc.target import ENGINE_FIELDS, SHARDED_FIELDS

Resolved = dict[str, Any]
MESH_KEYS = ("nodes", "gpus")
WHOLE = ("placement", "mode", "engine", "staleness", "nodes", "hardware", "target", "objective")
"""Keys about the whole plan."""
OPS = (Op.TRAIN.value, Op.FORWARD.value, Op.GENERATE.value)


@dataclass(frozen=True, slots=True)
class Condition:
    """What a plan must satisfy: `edit` changes the resolved pipeline, `keeps` says which structures are wanted.

    `widened` changes it further, to what the user does not allow, for a condition that no structure meets otherwise.
    `sizes` maps a stage to ("nodes" or "gpus", count) of its mesh. `fixes` names
    the stages whose layout `field` is given.
    """

    text: str
    edit: Callable[[Resolved], None]
    keeps: Callable[[Graph], bool]
    widened: Callable[[Resolved], None] | None = None
    field: str = ""
    fixes: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[str, int]] | None = None

    def pipeline(self, resolved: Mapping[str, Any], wide: bool = False) -> Resolved:
        """Return a changed copy of a resolved pipeline."""
        document = copy.deepcopy(dict(resolved))
        self.edit(document)
        if wide and self.widened is not None:
            self.widened(document)
        return document


def parse_condition(text: str, pipeline: Pipeline) -> Condition:
    """Read KEY=VALUE. Raises InputError for a key that nothing answers to, or a value of the wrong kind."""
    key, separator, value = (part.strip() for part in text.partition("="))
    if not separator or not key or not value:
        raise InputError(f"--why-not {text!r}: write KEY=VALUE, such as tp=8, rollout.tp=4, staleness=1, mode=sync")
    if key in WHOLE:
        return _whole(text, key, value)
    names = [rewrite.name for rewrite in passes.default_passes()]
    name = key.removeprefix("pass.")
    if name in names:
        return _pass(text, name, value)
    selector, _, field = key.rpartition(".")
    stages = _selected(text, selector, pipeline)
    if field in MESH_KEYS:
        return Condition(text, _nothing, _any, sizes={s.name: (field, _count(text, value)) for s in stages})
    return _layout(text, field, _scalar(value), stages, (*WHOLE, *names, *ENGINE_FIELDS, *SHARDED_FIELDS))


def _nothing(document: Resolved) -> None:
    del document


def _any(graph: Graph) -> bool:
    return bool(graph.stages)


def _selected(text: str, selector: str, pipeline: Pipeline) -> list[Stage]:
    """Return the stages with a layout that a selector names: all, of an op, of a role, or one."""
    stages = [stage for stage in expand(pipeline).stages if stage.op.on_gpus]
    found = [s for s in stages if selector in ("", s.name, s.op.value, s.model)]
    if not found:
        known = [*(s.name for s in stages), *OPS, *pipeline.roles]
        raise InputError(f"--why-not {text!r}: no stage, op or role `{selector}`", hint=guess(selector, known))
    return found


def _layout(text: str, field: str, value: Scalar, stages: list[Stage], known: tuple[str, ...]) -> Condition:
    """Fix a layout field of the stages that have it, as the pipeline's `fix` does."""
    having = [s for s in stages if field in (ENGINE_FIELDS if s.op is Op.GENERATE else SHARDED_FIELDS)]
    if not having:
        raise InputError(f"--why-not {text!r}: no such condition on {field!r}", hint=guess(field, known))

    def edit(document: Resolved) -> None:
        for stage in having:
            document["fix"].setdefault(stage.name, {})[field] = value

    return Condition(text, edit, _any, field=field, fixes=tuple(stage.name for stage in having))


def _whole(text: str, key: str, value: str) -> Condition:
    if key in ("hardware", "nodes"):
        number = _count(text, value) if key == "nodes" else value
        return Condition(text, lambda document: document["cluster"].__setitem__(key, number), _any)
    if key in ("target", "objective"):
        return Condition(text, lambda document: document.__setitem__(key, value), _any)
    if key == "staleness":
        bound = _count(text, value, least=0)
        return Condition(
            text,
            _nothing,
            lambda graph: max([d for _, d in publications(graph)], default=1) - 1 == bound,
            lambda document: _allow(document, max_staleness=max(bound, document["allow"]["max_staleness"])),
        )
    return Condition(
        text,
        _nothing,
        {
            "placement": lambda graph: any(r.name == "place" and r.where == value for r in graph.rewrites),
            "mode": lambda graph: graph.mode == value,
            "engine": lambda graph: graph.engine == value,
        }[key],
        _allow_everything,
    )


def _pass(text: str, name: str, value: str) -> Condition:
    if value not in ("on", "off"):
        raise InputError(f"--why-not {text!r}: a pass is `on` or `off`, got `{value}`")
    wanted = value == "on"
    semantics = next(rewrite.semantics for rewrite in passes.default_passes() if rewrite.name == name)

    def widened(document: Resolved) -> None:
        if semantics == "stale":
            _allow(document, max_staleness=max(1, document["allow"]["max_staleness"]), partial_rollout=True)
        elif semantics == "model":
            changes = (*document["allow"]["model_changes"], name)
            _allow(document, model_changes=tuple(dict.fromkeys(changes)))

    fired = {True: lambda graph: _fired(graph, name), False: lambda graph: not _fired(graph, name)}[wanted]
    return Condition(text, _nothing, fired, widened if wanted and semantics != "exact" else None)


def _fired(graph: Graph, name: str) -> bool:
    return any(rewrite.name == name for rewrite in graph.rewrites)


def _allow(document: Resolved, **changes: Any) -> None:
    document["allow"] = dict(document["allow"]) | changes


def _allow_everything(document: Resolved) -> None:
    changes = tuple(rewrite.name for rewrite in passes.default_passes() if rewrite.semantics == "model")
    _allow(document, max_staleness=max(1, document["allow"]["max_staleness"]), partial_rollout=True)
    _allow(document, model_changes=tuple(dict.fromkeys((*document["allow"]["model_changes"], *changes))))


def _count(text: str, value: str, least: int = 1) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) < least:
        raise InputError(f"--why-not {text!r}: wants a whole number of at least {least}, got `{value}`")
    return int(value)


def _scalar(value: str) -> Scalar:
    """Read a value as YAML would: a switch, a whole number, a number, a word."""
    if value in ("true", "false", "on", "off"):
        return value in ("true", "on")
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
