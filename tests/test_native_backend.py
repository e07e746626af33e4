"""The native target: what it refuses by name, what the planner chooses for it, and the files that launch it."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import backend, backend_names
from rpegc.compiler import Options, compile_pipeline, plan_files, setting_of
from rpegc.errors import InputError
from rpegc.frontend.load import load_pipeline, pipeline_from_text
from rpegc.plan import plan_from_document
from rpegc.runtime.flow import flows
from rpegc.runtime.program import Instance, order, segments, version_used
from rpegc.runtime.settings import settings_of
from rpegc.target import EngineLayout, MeshClass, ShardedLayout

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "native" / "copy.yaml"

PIPELINE = """
name: small
algorithm: grpo
models:
  actor: {config: Qwen/Qwen3-8B, weights: /models/Qwen3-8B}
  reference: {like: actor}
workload:
  prompts_per_step: 64
  samples_per_prompt: 16
  prompt_tokens: {mean: 200, max: 512}
  response_tokens: {mean: 3000, p99: 11000, max: 16384}
data: {train: /data/train.parquet}
training: {learning_rate: 1.0e-6, kl: {coefficient: 0.001}, total_steps: 10}
reward: {function: "reward.py:score"}
cluster: {hardware: gh200-alps, nodes: 4, site: alps}
allow: {max_staleness: 1, minimum_gain: 0.0}
target: native
"""


@cache
def compiled(text=PIPELINE):
    pipeline = pipeline_from_text(text)
    plan = compile_pipeline(pipeline, Options(space="quick"))
    return plan, plan_files(plan, setting_of(pipeline, Options(space="quick")))


def refused(change, into):
    with pytest.raises(InputError) as caught:
        setting_of(pipeline_from_text(PIPELINE.replace(change, into)), Options(space="quick"))
    return str(caught.value)


def test_native_is_a_target():
    assert "native" in backend_names()
    assert backend("native").name == "native"


@pytest.mark.parametrize(
    ("change", "into", "said"),
    [
        ("total_steps: 10", "total_steps: 10, lora_rank: 8", "training.lora_rank: the native engine trains weights"),
        ("target: native", "target: native\ntarget_overrides: {advantge: rloo}", "did you mean `advantage`?"),
        ("target: native", "target: native\ntarget_overrides: {advantage: best}", "must be one of grpo, rloo"),
        ("target: native", "target: native\ntarget_overrides: {advantage: gae}", "needs a critic"),
        ("target: native", "target: native\ntarget_overrides: {weight_decay: -1}", "a number of at least 0"),
        ('function: "reward.py:score"', "seconds_per_sample: 0.1", "no verifier of its own"),
    ],
)
def test_what_the_engine_lacks_is_refused_with_its_line(change, into, said):
    message = refused(change, into)
    assert said in message
    assert "pipeline.yaml:" in message


def test_a_plan_for_many_gpus_compiles_to_a_launch_that_bash_accepts(tmp_path):
    plan, files = compiled()
    assert plan.target.name == "native"
    assert {name for name in files if name.startswith("launch/")} == {
        "launch/README.md",
        "launch/environment.sh",
        "launch/processes.sh",
        "launch/submit.sbatch",
    }
    for name in ("submit.sbatch", "processes.sh", "environment.sh"):
        path = tmp_path / name
        path.write_bytes(files[f"launch/{name}"].content)
        subprocess.run(["bash", "-n", str(path)], check=True)
    script = files["launch/submit.sbatch"].content.decode()
    assert "#SBATCH --nodes=4\n" in script
    assert "#SBATCH --signal=B:TERM@600\n" in script
    assert '--nnodes=4 --nproc-per-node="${RPEGC_GPUS_PER_NODE:-4}"' in files["launch/processes.sh"].content.decode()


def test_scripts_pass_shellcheck(tmp_path):
    for name, file in compiled()[1].items():
        if name.endswith((".sh", ".sbatch")):
            path = tmp_path / Path(name).name
            path.write_bytes(file.content)
            subprocess.run([Path(sys.executable).parent / "shellcheck", "--shell=bash", path], check=True)


def test_the_chosen_rows_pass_the_rules_again_and_a_changed_one_does_not():
    plan, _ = compiled()
    setting = setting_of(pipeline_from_text(PIPELINE), Options(space="quick"))
    facts = {stage.name: {"heads": 32, "kv_heads": 8} for stage in plan.stages if stage.layout}
    assert facts
    rules = {rule.name: rule for rule in setting.context.capabilities.rules["train"]}
    context = {"heads": 32, "kv_heads": 8, "vocabulary": 151936, "layers": 36, "experts": 0, "max_sequence_tokens": 100}
    mesh = MeshClass(1, 4)
    for layout, name in (
        (ShardedLayout(dp=2, token_budget=128), "layout-tiles-mesh"),
        (ShardedLayout(tp=3, token_budget=128), "tensor-parallel-splits-model"),
        (ShardedLayout(pp=4, zero=3, token_budget=128), "pipeline-holds-whole-layers"),
        (ShardedLayout(ulysses=2, pp=2, token_budget=128), "ulysses-splits-heads"),
        (ShardedLayout(dp=4), "one-way-of-batching"),
        (ShardedLayout(dp=4, token_budget=64), "token-budget-holds-a-sequence"),
        (ShardedLayout(dp=4, token_budget=128, offload_optimizer=True), "states-are-offloaded-together"),
        (
            ShardedLayout(dp=4, token_budget=128, offload_activations=True, recompute="full"),
            "activations-are-offloaded-or-recomputed",
        ),
        (ShardedLayout(dp=4, zero=3, shard_size=3, token_budget=128), "shard-group-tiles-data-ranks"),
    ):
        with pytest.raises(InputError, match=name):
            rules[name].check(layout, mesh, context, "stage update_actor")
    rules["layout-tiles-mesh"].check(ShardedLayout(dp=4, token_budget=128), mesh, context, "stage update_actor")
    generate = {rule.name: rule for rule in setting.context.capabilities.rules["generate"]}
    with pytest.raises(InputError, match="replicas-share-prompts"):
        generate["replicas-share-prompts"].check(
            EngineLayout(replicas=4), mesh, {"prompts_per_step": 6}, "stage rollout"
        )


def test_the_example_compiles_and_its_plan_reads_back():
    pipeline = load_pipeline(EXAMPLE)
    plan = compile_pipeline(pipeline, Options(space="quick"))
    assert plan.devices.gpus == 2
    assert "launch/run.sh" in plan_files(plan, setting_of(pipeline, Options(space="quick")))
    assert plan_from_document(json.loads(plan.to_json()), "plan.json") == plan


# --- the order in which stages run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 3])
def test_no_stage_comes_before_what_it_needs(first):
    plan, _ = compiled()
    instances = order(plan, range(first, first + 4))
    assert len(set(instances)) == 4 * len(plan.graph.stages)
    place = {instance: number for number, instance in enumerate(instances)}
    for edge in plan.graph.edges:
        for step in range(first, first + 4 - edge.distance):
            assert place[Instance(step, edge.source)] < place[Instance(step + edge.distance, edge.target)]


@given(first=st.integers(0, 40), length=st.integers(1, 60), every=st.integers(0, 12))
def test_segments_cover_every_step_once_and_end_at_checkpoints(first, length, every):
    parts = list(segments(first, first + length, every))
    assert [step for part in parts for step in part] == list(range(first, first + length))
    assert all(every and part.stop % every == 0 for part in parts[:-1])


def test_weights_are_as_old_as_the_graph_says():
    plan, _ = compiled()
    distance = plan.staleness.bound + 1
    assert version_used(plan.graph, "rollout", 10, 0) == 11 - distance
    assert version_used(plan.graph, "rollout", 10, 10) == 10  # nothing is older than the fence


def test_a_step_streams_only_where_every_update_keeps_its_samples():
    plan, _ = compiled()
    edges = tuple(replace(e, chunks=4) if e.source == "rollout" else e for e in plan.graph.edges)
    streamed = replace(plan, graph=replace(plan.graph, edges=edges))
    settings = settings_of(plan.pipeline, 1)
    assert flows(plan, settings)["update_actor"].waves == 1
    assert flows(streamed, settings)["update_actor"].waves == flows(streamed, settings)["rollout"].waves == 4
    twice = {**plan.pipeline, "workload": {**plan.pipeline["workload"], "minibatches_per_step": 2}}
    assert flows(streamed, settings_of(twice, 1))["update_actor"].waves == 1
    whitened = {**plan.pipeline, "target_overrides": {"advantage": "reinforce++"}}
    assert flows(streamed, settings_of(whitened, 1))["advantages"].waves == 1


def test_what_the_report_says_to_run_was_written(tmp_path):
    from rpegc.report.terminal import console, render

    for text in (PIPELINE, PIPELINE.replace("nodes: 4", "nodes: 1").replace("Qwen3-8B", "Qwen3-0.6B")):
        plan, files = compiled(text)
        shown = console()
        with shown.capture() as capture:
            render(plan, "here", shown)
        named = [word.removeprefix("here/") for word in capture.get().split() if word.startswith("here/launch/")]
        assert named
        assert set(named) <= set(files)
