"""The Megatron engine of verl: its rules, its uneven pipelines, and the engine as a choice of the planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_verl_rules import CONTEXT, MESH
from verl_plans import megatron, megatron_grpo

from backends import backend
from backends.verl.rules_megatron import FORWARD, TRAIN, end_layers
from rpegc.compiler import Options, compile_pipeline, setting_of, structures
from rpegc.errors import InputError
from rpegc.frontend.load import pipeline_from_text
from rpegc.plan import Plan
from rpegc.target import MeshClass, columns_of

SOUND = megatron(16, token_budget=20480)
FACTS = CONTEXT | {"experts": 128, "expert_intermediate": 768, "sequences_per_pass": 2048}

REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], MeshClass, str]] = [
    ("megatron-splits-by-tp-cp-pp", {"dp": 8}, {}, MESH, "must be the 16 GPUs"),
    ("megatron-splits-by-tp-cp-pp", {"ulysses": 2, "dp": 2}, {}, MESH, "not 2"),
    ("distributed-optimizer", {"zero": 3}, {}, MESH, "not 3"),
    ("megatron-tp-splits-heads", {}, {"kv_heads": 1}, MESH, "1 key-value heads"),
    ("megatron-tp-splits-vocabulary", {}, {"vocabulary": 50257}, MESH, "vocabulary of 50257"),
    ("megatron-tp-inside-a-node", {"tp": 8, "pp": 2, "dp": 1}, {}, MESH, "divide the 4 GPUs"),
    ("layers-split-over-stages", {"vpp": 4}, {}, MESH, "36 layers must split over pp 2 × vpp 4"),
    ("layers-split-over-stages", {"pp": 8, "dp": 1}, {"layers": 9}, MESH, "9 layers"),
    ("interleaving-has-stages", {"pp": 1, "dp": 8, "vpp": 2}, {}, MESH, "pp above 1"),
    ("interleaving-rounds-micro-batches", {"vpp": 2}, {"sequences_per_pass": 2052}, MESH, "multiple of pp 2"),
    ("experts-tile-the-stage-groups", {"ep": 3}, {}, MESH, "the 16 GPUs of the mesh over pp 2"),
    ("megatron-experts-split", {"ep": 4}, {"experts": 126}, MESH, "126 experts"),
    ("expert-tensor-parallel-splits-experts", {"etp": 2}, {"expert_intermediate": 769}, MESH, "width of an expert"),
    ("sequence-parallel-with-tensor-parallel", {"tp": 1, "dp": 8}, {}, MESH, "needs tp 1 above 1"),
    ("sequence-parallel-with-tensor-parallel", {"sequence_parallel": False, "ep": 2}, {}, MESH, "ep 2"),
    ("token-budget-holds-a-sequence", {"token_budget": 8192}, {}, MESH, "17408 tokens"),
    ("pool-takes-whole-nodes", {}, {}, MeshClass(8, 2), "not 2"),
    ("minibatch-splits-over-ranks", {}, {"sequences_per_update": 2050}, MESH, "2050 sequences"),
    ("adapters-leave-experts-alone", {}, {"lora_rank": 32}, MESH, "128 experts"),
    ("activations-stay", {"offload_activations": True}, {}, MESH, "does not offload"),
]


def test_a_sound_layout_passes_every_rule() -> None:
    for rule in (*TRAIN, *FORWARD):
        rule.check(SOUND, MESH, FACTS, "stage x")


@pytest.mark.parametrize(("name", "layout", "facts", "mesh", "words"), REFUSED)
def test_a_rule_refuses_and_says_the_values(
    name: str, layout: dict[str, Any], facts: dict[str, Any], mesh: MeshClass, words: str
) -> None:
    rule = next(rule for rule in (*TRAIN, *FORWARD) if rule.name == name)
    with pytest.raises(InputError) as caught:
        rule.check(replace(SOUND, **layout), mesh, FACTS | facts, "stage x")
    assert words in str(caught.value)


def test_every_rule_has_a_case_and_filters_tables() -> None:
    columns = columns_of([SOUND] * 5, MESH) | {name: np.full(5, value) for name, value in FACTS.items()}
    for rule in (*TRAIN, *FORWARD):
        assert rule.allows(columns).tolist() == [True] * 5, rule.name
    known = {rule.name for rule in (*TRAIN, *FORWARD)} - {"batch-splits-over-ranks"}  # tested with FSDP's rules
    assert known == {case[0] for case in REFUSED}


@pytest.mark.parametrize(
    ("layers", "pp", "ends"),
    [(94, 8, (11, 11)), (61, 16, (3, 2)), (61, 8, (7, 6)), (61, 2, (31, 30)), (36, 4, None), (80, 1, None)],
)
def test_uneven_pipelines_shorten_their_ends(layers: int, pp: int, ends: tuple[int, int] | None) -> None:
    """94 layers on 8 stages are verl's own example for Qwen3-235B: 11, six times 12, 11."""
    assert end_layers(layers, pp) == ends
    if ends is not None and pp > 2:
        assert (layers - sum(ends)) % (pp - 2) == 0
        assert max(ends) <= (layers - sum(ends)) // (pp - 2)


def overrides(plan: Plan) -> list[str]:
    return backend("verl").emit(plan)["launch/verl_overrides.txt"].content.decode().splitlines()


def test_uneven_ends_are_written_with_a_plus() -> None:
    lines = overrides(megatron_grpo())
    section = "+actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in"
    assert f"{section}_first_pipeline_stage=23" in lines
    assert f"{section}_last_pipeline_stage=23" in lines


def test_no_setting_of_one_engine_is_written_for_the_other() -> None:
    assert not [line for line in overrides(megatron_grpo()) if "fsdp" in line or "ulysses" in line]


PIPELINE = """
name: engines
algorithm: grpo
models: {actor: {config: Qwen/Qwen3-8B, weights: /m}, reference: {like: actor}}
workload:
  prompts_per_step: 64
  samples_per_prompt: 8
  prompt_tokens: {mean: 200, max: 512}
  response_tokens: {mean: 1000, max: 4096}
  minibatches_per_step: 2
training: {kl: {coefficient: 0.001}, learning_rate: 1e-6, total_steps: 10}
reward: {function: "r.py:score"}
cluster: {hardware: gh200-alps, nodes: 2}
"""


def engines_of(text: str) -> list[str]:
    setting = setting_of(pipeline_from_text(text), Options(space="quick"))
    return sorted({graph.engine for graph in structures(setting)})


@pytest.mark.parametrize(
    ("extra", "engines"),
    [
        ("", ["fsdp", "megatron"]),
        ("engine: megatron", ["megatron"]),
        ("engine: fsdp", ["fsdp"]),
        ("fix: {update_actor: {tp: 2}}", ["megatron"]),
        ("fix: {update_actor: {ulysses: 2}}", ["fsdp"]),
        (
            "target_overrides: {+actor_rollout_ref.actor.megatron.override_ddp_config.overlap_grad_reduce: true}",
            ["megatron"],
        ),
        ("target_overrides: {actor_rollout_ref.actor.fsdp_config.forward_prefetch: true}", ["fsdp"]),
    ],
)
def test_what_the_user_fixes_narrows_the_engines(extra: str, engines: list[str]) -> None:
    assert engines_of(PIPELINE + extra) == engines


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("engine: torchtitan", "engine: verl launches are not written for 'torchtitan'"),
        ("engine: megatron\nfix: {update_actor: {ulysses: 2}}", "verl accepts 1 here, not 2"),
        ("target_overrides: {model_engine: megatron}", "model_engine is decided by engine"),
        (
            "engine: megatron\ntarget_overrides: {actor_rollout_ref.actor.megatron.context_parallel_size: 2}",
            "write `fix: {update_actor: {cp: ...}",
        ),
        (
            "engine: megatron\ntarget_overrides: {actor_rollout_ref.ref.megatron.tensor_model_parallel_size: 2}",
            "write `fix: {reference: {tp: ...}",
        ),
    ],
)
def test_what_no_engine_can_do_is_refused_with_its_line(extra: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        engines_of(PIPELINE + extra)
    assert words in f"{caught.value}"
    assert caught.value.position is not None


def test_one_search_covers_both_engines() -> None:
    """The free choice is at most the tolerance worse than either engine alone, and the plan says what it chose."""
    plans = {
        engine: compile_pipeline(pipeline_from_text(f"{PIPELINE}engine: {engine}\n"), Options(space="quick"))
        for engine in ("fsdp", "megatron")
    }
    free = compile_pipeline(pipeline_from_text(PIPELINE), Options(space="quick"))
    for engine, plan in plans.items():
        assert plan.graph.engine == plan.knobs["engine"] == engine
        assert free.period_s <= plan.period_s * 1.011
        assert free.lower_bound_s <= plan.period_s
    chosen = str(free.knobs["engine"])
    assert free.target.name == "verl"
    assert {alternative.difference["engine"] for alternative in free.alternatives} | {chosen} == set(plans)
    layout = free.stage("update_actor").layout
    assert layout is not None
    assert (getattr(layout, "zero", None) == 1) == (chosen == "megatron")
