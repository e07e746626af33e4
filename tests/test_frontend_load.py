"""What a loaded pipeline answers, and that the examples load."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

import passes
from rpegc.errors import InputError
from rpegc.frontend.expand import expand
from rpegc.frontend.load import load_pipeline, pipeline_from_text, restore_pipeline
from rpegc.frontend.schema import pipeline_json_schema
from rpegc.frontend.schema_cluster import MODEL_CHANGES
from rpegc.ir.verify import verify
from rpegc.rewrite import Allowance

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.yaml"))
RESPONSES = "{mean: 1000, p99: 4000, max: 8192}"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_and_survives_its_resolved_form(path: Path) -> None:
    pipeline = load_pipeline(path)
    graph = expand(pipeline)
    verify(graph)
    resolved = pipeline.resolved()
    text = json.dumps(resolved, allow_nan=False)
    restored = restore_pipeline(json.loads(text))
    assert restored.resolved() == resolved
    assert expand(restored) == graph
    assert pipeline.spec.data is not None
    assert all(pipeline.model(role).weights for role in pipeline.roles)


def test_defaults_are_filled_in(pipeline_text: str) -> None:
    resolved = pipeline_from_text(pipeline_text).resolved()
    assert resolved["training"]["clip"] == [0.2, 0.2]
    assert resolved["training"]["learning_rate"] is None
    assert resolved["training"]["kl"] == {"coefficient": 0.0, "where": "loss", "estimator": "k3"}
    assert resolved["cluster"] == {
        "hardware": "gh200-alps",
        "nodes": 2,
        "usd_per_gpu_hour": None,
        "pools": None,
        "site": "alps",
    }
    assert resolved["allow"]["max_staleness"] == 0
    assert resolved["target"] == "verl"
    assert resolved["architectures"]["actor"]["layers"] == 36


def test_the_resolved_form_does_not_depend_on_the_order_of_keys(pipeline_text: str) -> None:
    reordered = "".join(sorted(pipeline_text.splitlines(keepends=True)[10:])) + "".join(
        pipeline_text.splitlines(keepends=True)[:10]
    )
    first, second = pipeline_from_text(pipeline_text).resolved(), pipeline_from_text(reordered).resolved()
    assert json.dumps(first) == json.dumps(second)


def test_like_gives_config_weights_and_tokenizer(pipeline_text: str) -> None:
    text = pipeline_text.replace(
        "{config: Qwen/Qwen3-8B}", "{config: Qwen/Qwen3-8B, weights: /m/q}\n  reference: {like: actor}"
    )
    pipeline = pipeline_from_text(text)
    reference = pipeline.model("reference")
    assert (reference.weights, reference.tokenizer, reference.like) == ("/m/q", "/m/q", "actor")
    assert pipeline.architectures["reference"] == pipeline.architectures["actor"]
    assert pipeline.model_facts()["reference"].like == "actor"


def test_adapters_belong_to_the_roles_that_are_trained(pipeline_text: str) -> None:
    text = pipeline_text.replace("{config: Qwen/Qwen3-8B}", "{config: Qwen/Qwen3-8B}\n  reference: {like: actor}")
    facts = pipeline_from_text(text + "training: {lora_rank: 16}\n").model_facts()
    assert (facts["actor"].lora_rank, facts["reference"].lora_rank) == (16, 0)


def test_workload_facts_count_sequences_and_updates(pipeline_text: str) -> None:
    facts = pipeline_from_text(pipeline_text + "training: {epochs_per_batch: 3}\n").workload_facts()
    assert facts.sequences_per_step == 512
    assert facts.sequences_per_update == 256
    assert facts.updates_per_step == 6
    assert facts.max_sequence_tokens == 8704
    assert facts.mean_response_tokens == pytest.approx(1000, rel=1e-6)
    assert facts.kl_where == "none"


def test_a_penalty_of_weight_0_keeps_its_place_while_there_is_a_reference(pipeline_text: str) -> None:
    """Canonicalization then knows which edges carry it."""
    text = pipeline_text.replace("{config: Qwen/Qwen3-8B}", "{config: Qwen/Qwen3-8B}\n  reference: {like: actor}")
    pipeline = pipeline_from_text(text + "training: {kl: {coefficient: 0, where: reward}}\n")
    assert pipeline.workload_facts().kl_where == "reward"


def test_the_changes_a_user_may_allow_are_the_passes_that_change_the_model() -> None:
    modules = [importlib.import_module(f"passes.{found.name}") for found in pkgutil.iter_modules(passes.__path__)]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    changing = {kind.name for kind in kinds if getattr(kind, "semantics", "") == "model"}
    in_part = {"stream-rollout"}  # exact into assessment; into training only where an update keeps its members
    assert changing | in_part == set(MODEL_CHANGES)


def test_allowance(pipeline_text: str) -> None:
    allow = (
        "allow: {max_staleness: 2, partial_rollout: true, model_changes: [reuse-rollout-logprobs], minimum_gain: 0.1}\n"
    )
    assert pipeline_from_text(pipeline_text + allow).allowance() == Allowance(
        2, True, frozenset({"reuse-rollout-logprobs"}), 0.1
    )


@pytest.mark.parametrize(
    ("form", "mean", "longest"),
    [("{fixed: 700}", 700.0, 700), ("{mean: 700, max: 4000}", 700.0, 4000), (RESPONSES, 1000.0, 8192)],
)
def test_response_lengths_have_the_stated_mean(pipeline_text: str, form: str, mean: float, longest: int) -> None:
    lengths = pipeline_from_text(pipeline_text.replace(RESPONSES, form)).response_lengths()
    assert lengths.mean == pytest.approx(mean, rel=1e-6)
    assert lengths.max == longest


def test_a_histogram_is_read_beside_the_pipeline_and_kept_in_the_resolved_form(
    pipeline_text: str, tmp_path: Path
) -> None:
    (tmp_path / "lengths.csv").write_text("tokens, count\n200, 1\n100, 2\n\n900, 1\n")
    path = tmp_path / "p.yaml"
    path.write_text(pipeline_text.replace(RESPONSES, "{histogram: lengths.csv, max: 500}"))
    pipeline = load_pipeline(path)
    assert pipeline.response_lengths().mean == pytest.approx((100 + 100 + 200 + 500) / 4)
    resolved = json.loads(json.dumps(pipeline.resolved()))
    (tmp_path / "lengths.csv").unlink()
    assert restore_pipeline(resolved).response_lengths() == pipeline.response_lengths()


def test_positions_of_keys(pipeline_text: str) -> None:
    pipeline = pipeline_from_text(pipeline_text, "p.yaml")
    assert str(pipeline.position("workload.prompts_per_step")) == "p.yaml:6:3"
    assert str(pipeline.position("workload.epochs")) == "p.yaml:5:1"
    assert restore_pipeline(pipeline.resolved()).position("workload") is None


@pytest.mark.parametrize("resolved", [{}, {"architectures": 3}, {"architectures": {}, "histograms": {}, "models": {}}])
def test_a_damaged_resolved_form_is_refused(resolved: dict[str, object]) -> None:
    with pytest.raises(InputError, match="not a resolved pipeline"):
        restore_pipeline(resolved)


def test_override_keys_may_ask_to_be_added(pipeline_text: str) -> None:
    spec = pipeline_from_text(pipeline_text + "target_overrides: {+a.b: 1, '++c.d': x}\n").spec
    assert spec.target_overrides == {"+a.b": 1, "++c.d": "x"}


def test_overrides_keep_their_types_and_hostile_texts_stay_texts(pipeline_text: str) -> None:
    overrides = (
        "target_overrides: {trainer.logger: '$(reboot)', a.b: 1, a.c: 0.5, a.d: true, a.e: 'true', a.f: '{{ x }}'}\n"
    )
    spec = pipeline_from_text(pipeline_text + overrides).spec
    assert spec.target_overrides == {
        "trainer.logger": "$(reboot)",
        "a.b": 1,
        "a.c": 0.5,
        "a.d": True,
        "a.e": "true",
        "a.f": "{{ x }}",
    }
    assert type(spec.target_overrides["a.d"]) is bool
    assert type(spec.target_overrides["a.b"]) is int


def test_an_override_may_be_a_list_of_plain_values(pipeline_text: str) -> None:
    pipeline = pipeline_from_text(pipeline_text + "target_overrides: {trainer.logger: [console, file, 1, true]}\n")
    assert pipeline.spec.target_overrides == {"trainer.logger": ("console", "file", 1, True)}
    restored = restore_pipeline(json.loads(json.dumps(pipeline.resolved())))
    assert restored.spec.target_overrides == pipeline.spec.target_overrides


def test_the_json_schema_names_every_key() -> None:
    schema = pipeline_json_schema()
    assert {"name", "algorithm", "models", "workload", "cluster", "stages"} <= set(schema["properties"])
    assert "in" in schema["$defs"]["StageSpec"]["properties"]
    assert all(schema["$defs"]["WorkloadSpec"]["properties"][key]["description"] for key in ("prompts_per_step",))


def test_usd_needs_a_price(pipeline_text: str) -> None:
    pipeline = pipeline_from_text(pipeline_text + "objective: gpu_hours\n")
    text = pipeline_text + "objective: usd\n"
    if pipeline.machine.usd_per_gpu_hour is None:
        with pytest.raises(InputError, match="objective usd needs a price"):
            pipeline_from_text(text)
    else:
        assert pipeline_from_text(text).spec.objective == "usd"
