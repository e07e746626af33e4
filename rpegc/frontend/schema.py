"""The pipeline file as a whole: its keys, their types and limits. Rules across keys are in `rules.py`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from rpegc.frontend.presets import preset_names
from rpegc.frontend.schema_cluster import AllowSpec, ClusterSpec, Objective, Target, TargetFlavour
from rpegc.frontend.schema_errors import first_error
from rpegc.frontend.schema_fields import Block, Identifier, Name, OverrideKey, Text
from rpegc.frontend.schema_stage import ModelSpec, StageSpec
from rpegc.frontend.schema_workload import DataSpec, RewardSpec, TrainingSpec, WorkloadSpec
from rpegc.frontend.yaml_source import YamlDocument


class PipelineSpec(Block):
    """One RL post-training pipeline, as its author wrote it, with defaults filled in."""

    name: Name
    """Names the plan and its output folder."""
    algorithm: Text
    """The preset that expands to stages."""
    models: dict[Identifier, ModelSpec]
    """Each role's model; `actor` is the one that is trained to act."""
    data: DataSpec | None = None
    """Where the prompts are; may be missing for planning."""
    workload: WorkloadSpec
    """What one RL step processes."""
    training: TrainingSpec = TrainingSpec()
    """How the weights are updated."""
    reward: RewardSpec | None = None
    """A reward that a program computes; a reward model is the role `reward` in `models`."""
    cluster: ClusterSpec
    """The machine that the plan is for."""
    allow: AllowSpec = AllowSpec()
    """What the planner may change."""
    objective: Objective = "step_time"
    """What the plan makes small."""
    target: Target = "verl"
    """What the plan is launched with."""
    target_flavour: TargetFlavour | None = None
    """Which trainer runs on the target, where it has several: of `deepspeed`, `trl` (the default) or `openrlhf`."""
    engine: Text | None = None
    """The training engine, where the target has several (verl: `fsdp`, `megatron`); absent = the planner's choice."""
    target_overrides: dict[OverrideKey, bool | int | float | Text | tuple[bool | int | float | Text, ...]] = Field(
        default_factory=dict
    )
    """Keys passed through to the target; a key that the planner decides is refused."""
    fix: dict[Identifier, dict[Identifier, bool | int | float | Text]] = Field(default_factory=dict)
    """Layout fields that the planner must keep, by stage, such as `rollout: {tp: 2}`."""
    stages: dict[Identifier, StageSpec | None] = Field(default_factory=dict)
    """Stages added to the preset's or put in their place; null removes one."""


def validate_document(document: YamlDocument) -> PipelineSpec:
    """Check types, limits and unknown keys of a file. Raises `InputError` for the first offence in file order."""
    try:
        return PipelineSpec.model_validate(document.root.plain())
    except ValidationError as problem:
        raise first_error(problem, PipelineSpec, document) from None


def pipeline_json_schema() -> dict[str, Any]:
    """Return the JSON schema of pipeline files, for editors and for `rpegc schema`."""
    schema = PipelineSpec.model_json_schema(by_alias=True)
    schema["properties"]["algorithm"]["enum"] = list(preset_names())
    return schema
