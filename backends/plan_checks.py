"""Checks of a whole plan that every backend makes: its rules again, its ties, how old the weights are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.request import PipelineRequest
from rpegc.errors import InputError
from rpegc.plan import Plan, PlannedStage
from rpegc.target import Rule, Tie

MODEL_COLUMNS = ("heads", "kv_heads", "layers", "experts", "vocabulary", "hidden", "max_positions")
"""Context columns that the resolved pipeline's `architectures` give."""


def check_rules(
    plan: Plan, stage: PlannedStage, rules: tuple[Rule, ...], request: PipelineRequest, facts: Mapping[str, Any]
) -> None:
    """Raise InputError if a rule refuses the stage's layout on its mesh.

    A rule that reads a column which neither `facts` nor the plan supply was applied when the stage's layouts were
    tabulated, and is not repeated.
    """
    assert stage.layout is not None
    model = request.get(f"architectures.{stage.model}") or {}
    context = {
        **request.workload_columns(),
        **{column: model[column] for column in MODEL_COLUMNS if column in model},
        "node_gpus": plan.devices.gpus_per_node,
        "apart": int(not any(other.mesh == stage.mesh for other in plan.stages if other.name != stage.name)),
        **facts,
    }
    for rule in rules:
        try:
            rule.check(stage.layout, plan.mesh(stage.mesh).mesh_class, context, f"stage {stage.name}")
        except KeyError:  # a column that only tabulation knows
            continue


def weight_distance(plan: Plan, train: str, generate: str) -> int | None:
    """Return the steps from one stage's weights to another stage, through sync stages; None if no edge leads there."""
    for edge in plan.graph.out_of(train):
        if edge.target == generate:
            return edge.distance
        if plan.graph.stage(edge.target).op == "sync":
            onward = weight_distance(plan, edge.target, generate)
            if onward is not None:
                return edge.distance + onward
    return None


def check_ties(plan: Plan, ties: tuple[Tie, ...]) -> None:
    """Raise InputError where stages that the target runs with one value of a field differ in it."""
    for tie in ties:
        stages = [plan.stage(name) for name in tie.stages]
        for field in tie.fields:
            values = {stage.name: getattr(stage.layout, field) for stage in stages}
            if len(set(values.values())) > 1:
                listing = ", ".join(f"{name} {value}" for name, value in values.items())
                raise InputError(f"{field} must be equal in one engine: {listing} [{tie.source}]")
