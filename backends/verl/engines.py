"""Which of verl's training engines a pipeline leaves to the planner, and what keeps it from the others."""

from __future__ import annotations

from collections.abc import Iterator

from backends.verl.capabilities import ENGINES, MEGATRON
from backends.verl.overrides import overrides_of
from backends.verl.request import Request
from backends.verl.run import possible_runs
from rpegc.emit import TargetRefusal

MEGATRON_FAMILIES = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "kimi_k2", "gpt_oss", "glm4_moe"}
)
"""`model_type` of the models that Megatron-Bridge 0.5.2 converts (its README and src/megatron/bridge/models), of those
whose layers rpegc knows."""

PASSED = ("actor", "critic")
"""Roles whose models the training engine runs (the reference is loaded from the actor's path)."""


def possible_engines(request: Request) -> tuple[str, ...]:
    """Return the engines that can carry a pipeline out, those that are asked for, in order."""
    wanted = (request.pinned_engine,) if request.pinned_engine else ENGINES
    return tuple(engine for engine in wanted if next(engine_refusals(request, engine), None) is None)


def engine_refusals(request: Request, engine: str) -> Iterator[TargetRefusal]:
    """Yield what keeps a pipeline from an engine: a model, a text that does not arrive, an override of an owned key."""
    if engine == MEGATRON:
        yield from _foreign_models(request)
    for run in possible_runs(request, engine):
        try:
            for override in overrides_of(run):
                _ = override.line
        except TargetRefusal as refusal:
            yield refusal


def _foreign_models(request: Request) -> Iterator[TargetRefusal]:
    for role in PASSED:
        family = request.get(f"architectures.{role}.family")
        if family is not None and family not in MEGATRON_FAMILIES:
            yield TargetRefusal(
                f"engine: Megatron-Bridge does not convert models of type {family} (models.{role}) "
                "[verl/workers/engine/megatron/transformer_impl.py: AutoBridge.from_hf_pretrained]",
                ("engine",),
                "leave `engine` out, or write `fsdp`",
            )
