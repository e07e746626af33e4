"""The context columns that rules may read beside a layout's fields: facts of the stage's model, step and machine."""

from __future__ import annotations

from rpegc.cost.work import StageWork, WorkContext
from rpegc.hardware import Machine
from rpegc.ir.graph import Op, Stage


def apart(stage: Stage, others: list[Stage]) -> bool:
    """Whether no other stage on GPUs may sit on any mesh of this one."""
    return bool(stage.meshes) and all(other is stage or not set(stage.meshes) & set(other.meshes) for other in others)


def stage_facts(work: StageWork, context: WorkContext, machine: Machine) -> dict[str, int | float]:
    """Return the context columns of one stage that has a model."""
    architecture = work.architecture
    assert architecture is not None, f"{work.stage} has no model, hence no layouts"
    sequences = work.sequences
    return {
        "heads": architecture.heads,
        "kv_heads": architecture.kv_heads,
        "layers": architecture.layers,
        "experts": architecture.experts,
        "expert_intermediate": architecture.expert_intermediate,
        "recurrent_layers": architecture.recurrent_layers,
        "recurrent_heads": architecture.recurrent_heads,
        "sink_layers": architecture.sink_layers,
        "vocabulary": architecture.vocabulary,
        "hidden": architecture.hidden,
        "max_positions": architecture.max_positions,
        "parameter_bytes": 2 * architecture.parameters,
        "lora_rank": work.lora_rank,
        "trained": int(work.trained),
        "prompts_per_step": work.prompts,
        "samples_per_prompt": work.samples_per_prompt,
        "sequences_per_step": sequences,
        "sequences_per_update": sequences // context.minibatches,
        "sequences_per_pass": sequences // context.minibatches if work.op is Op.TRAIN else sequences,
        "prompts_per_update": work.prompts // context.minibatches,
        "max_sequence_tokens": work.max_tokens,
        "max_prompt_tokens": int(work.prompt_tokens.max),
        "max_response_tokens": int(work.response_tokens.max),
        "hbm_bytes": machine.accelerator.hbm_bytes.value,
        "node_gpus": machine.gpus_per_node,
    }
