"""An architecture as plain data, for the resolved pipeline that a plan carries, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from rpegc.architecture.mixers import KINDS, Mixer
from rpegc.architecture.model import Architecture
from rpegc.errors import InputError, guess

# Fields that every document has; those that came later are written where they say something.
_ALWAYS = frozenset({"experts", "experts_per_token", "expert_intermediate", "shared_intermediate", "mlp_bias", "norms"})


def to_document(architecture: Architecture) -> dict[str, Any]:
    """Return the fields as JSON has them; what plain attention leaves at its default is left out."""
    document: dict[str, Any] = {}
    for field in fields(Architecture):
        value = getattr(architecture, field.name)
        if field.default is not MISSING and field.name not in _ALWAYS and value == field.default:
            continue
        document[field.name] = value
    if architecture.own_mixers:
        document["own_mixers"] = [{"kind": mixer.kind, **asdict(mixer)} for mixer in architecture.own_mixers]
    if architecture.left_out:
        document["left_out"] = list(architecture.left_out)
    return document


def from_document(document: Mapping[str, Any]) -> Architecture:
    """Return the architecture of `to_document`; raises InputError or TypeError for a document that is none."""
    facts = dict(document)
    if "own_mixers" in facts:
        facts["own_mixers"] = tuple(_mixer(dict(mixer)) for mixer in facts["own_mixers"])
    if "left_out" in facts:
        facts["left_out"] = tuple(facts["left_out"])
    return Architecture(**facts)


def _mixer(facts: dict[str, Any]) -> Mixer:
    kind = facts.pop("kind", None)
    if kind not in KINDS:
        raise InputError(f"no layer of kind `{kind}` is known", hint=guess(str(kind), KINDS))
    return KINDS[kind](**facts)
