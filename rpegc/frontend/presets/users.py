"""The user's own stages as recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rpegc.frontend.presets.recipe import Recipe
from rpegc.ir.graph import Op, Scalar

if TYPE_CHECKING:
    from rpegc.frontend.schema import PipelineSpec
    from rpegc.frontend.schema_stage import StageLengthsSpec, StageSpec

COUNTS = ("oversampling", "samples_per_prompt")


def user_recipe(name: str, stage: StageSpec, spec: PipelineSpec, generated: Mapping[str, Recipe]) -> Recipe:
    """Return a stage of the user's; `generated` holds who generates each value in the preset.

    Where the stage does not say how many sequences it works on and reads what a stage of the preset generated, they
    are as many as that stage generates.
    """
    op, attributes = Op(stage.op), dict[str, Scalar]()
    if op in (Op.FORWARD, Op.TRAIN):
        attributes["head"] = stage.head or "logits"
    if op is Op.FUNCTION:
        attributes["cpu_seconds_per_sample"] = stage.cpu_seconds_per_sample or 0.0
        attributes["workers_per_node"] = stage.workers_per_node or 1
    for value in stage.inputs:
        maker = generated.get(value)
        if maker is not None:
            whole = {made for made in maker.outputs if made.endswith("sequences")} <= set(stage.inputs)
            kept = COUNTS if whole else ("oversampling",)  # a part of the samples of each prompt: as many as the step's
            attributes |= {key: count for key, count in maker.attributes if key in kept}
    if op is Op.GENERATE and "prompts" not in stage.inputs:
        read = attributes.get("samples_per_prompt", spec.workload.samples_per_prompt)
        attributes |= {"inputs_per_prompt": read, "samples_per_prompt": 1}
    for key in (*COUNTS, "turns", "observation_tokens", "environment"):
        if getattr(stage, key) is not None:
            attributes[key] = getattr(stage, key)
    for key, lengths in (("prompt", stage.prompt_tokens), ("response", stage.response_tokens)):
        if lengths is not None:
            attributes |= _lengths(key, lengths)
    return Recipe(
        name=name,
        op=op,
        model=stage.model or "",
        inputs=stage.inputs,
        outputs=stage.outputs,
        attributes=tuple(sorted(attributes.items())),
        path=("stages", name),
    )


def _lengths(key: str, lengths: StageLengthsSpec) -> dict[str, Scalar]:
    """Return a stage's own lengths as attributes, from which `rpegc.cost.work` builds the distribution."""
    if lengths.fixed is not None:
        return {f"{key}_mean": float(lengths.fixed), f"{key}_max": lengths.fixed}
    found: dict[str, Scalar] = {f"{key}_mean": float(lengths.mean or 1.0), f"{key}_max": lengths.max or 1}
    return found | ({f"{key}_p99": float(lengths.p99)} if lengths.p99 is not None else {})
