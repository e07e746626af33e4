"""What verl cannot carry out is refused before the search, at its line of the pipeline file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backends import backend
from backends.roles import PLACES, PRESET_STAGES
from backends.verl.pipeline_checks import parts_wanted
from backends.verl.request import Request
from rpegc.compiler import Options, setting_of, structures
from rpegc.errors import InputError
from rpegc.frontend.load import pipeline_from_text
from rpegc.frontend.presets import stage_recipes
from rpegc.queries import check_file

GRPO = """\
name: refused
algorithm: grpo
models:
  actor: {config: Qwen/Qwen3-8B, weights: /models/Qwen3-8B}
  reference: {like: actor}
workload:
  prompts_per_step: 64
  samples_per_prompt: 8
  prompt_tokens: {mean: 100, max: 512}
  response_tokens: {mean: 1000, p99: 4000, max: 8192}
training: {kl: {coefficient: 0.001}}
reward: {function: "rewards/math.py:score"}
cluster: {hardware: gh200-alps, nodes: 2}
"""
PPO = (
    GRPO.replace("grpo", "ppo")
    .replace("reward: {function", "# reward: {function")
    .replace("  reference:", "  critic: {like: actor}\n  reward: {config: Qwen/Qwen3-8B}\n  reference:")
)

ANOTHER = "reference: {config: Qwen/Qwen3-4B, weights: /models/Qwen3-8B}"
BESIDE = "reference: {config: Qwen/Qwen3-8B, weights: /older}"
JUDGE = "reference: {like: actor}\n  judge: {config: Qwen/Qwen3-8B}"

CASES: dict[str, tuple[str, str, str, str, str]] = {
    "an owned key": (
        GRPO,
        "",
        "target_overrides: {trainer.nnodes: 3}",
        "target_overrides: {",
        "decided by the planner",
    ),
    "an owned key, added": (GRPO, "", "target_overrides:\n  +trainer.nnodes: 3", "  +trainer.nnodes", "the planner"),
    "a misspelt key": (GRPO, "", "target_overrides:\n  trainer.nnode: 3", "  trainer.nnode", "no such key"),
    "an owned key, forced": (
        GRPO,
        "",
        "target_overrides:\n  trainer.resume_mode: auto\n  ++data.seed: 3",
        "  ++data.seed",
        "--seed",
    ),
    "a section with owned keys": (GRPO, "", "target_overrides:\n  critic: 1", "  critic: 1", "is decided by"),
    "a value that Hydra would expand": (
        GRPO,
        "",
        "target_overrides:\n  trainer.rollout_data_dir: ${x}",
        "  trainer.roll",
        "expand",
    ),
    "a path that Hydra would expand": (GRPO, "", "data:\n  train: /data/${x}.parquet", "  train: /data", "data.train"),
    "weights that are a missing value": (GRPO, "weights: /models/Qwen3-8B", "weights: '???'", "  actor:", "missing"),
    "a reference of another model": (GRPO, "reference: {like: actor}", ANOTHER, "  reference: {config", "Qwen3-4B"),
    "a reference with other weights": (
        GRPO,
        "reference: {like: actor}",
        BESIDE,
        "  reference: {config",
        "/older",
    ),
    "rewards from a function and a model": (
        GRPO,
        "  reference:",
        "  reward: {config: Qwen/Qwen3-8B}\n  reference:",
        "reward: {function",
        "from a function or from a model",
    ),
    "adapters for a critic": (
        PPO,
        "training: {",
        "training: {lora_rank: 16, ",
        "training: {lora_rank",
        "cannot train a critic with adapters (rank 16)",
    ),
    "adapters beside a reference of its own": (
        GRPO.replace("reference: {like: actor}", "reference: {config: Qwen/Qwen3-8B, weights: /models/Qwen3-8B}"),
        "training: {",
        "training: {lora_rank: 16, ",
        "  reference:",
        "the actor without its adapter",
    ),
    "adapters that vLLM cannot serve": (
        GRPO,
        "training: {",
        "training: {lora_rank: 1024, ",
        "training: {lora_rank",
        "1024 must be at most 512",
    ),
    "a second reward model": (
        PPO.replace("reference: {like: actor}", JUDGE),
        "",
        "stages:\n  judge: {op: forward, model: judge, head: scalar, in: [sequences], out: [rewards]}",
        "  judge: {op",
        "no place for `forward` of the model `judge`",
    ),
    "a judge that generates": (
        GRPO.replace("reference: {like: actor}", JUDGE).replace("reward: {f", "# reward: {f"),
        "",
        "stages:\n  critique: {op: generate, model: judge, in: [sequences], out: [rewards], "
        "prompt_tokens: {mean: 900, max: 9000}, response_tokens: {mean: 100, max: 500}}",
        "  critique: {op",
        "no place for `generate` of the model `judge`",
    ),
    "a stage whose part is taken": (
        GRPO.replace("reward: {f", "# reward: {f"),
        "",
        "stages:\n  again: {op: forward, model: actor, in: [sequences], out: [rewards]}",
        "  again: {op",
        "already taken by old_logprobs",
    ),
    "a critic beside GRPO": (
        GRPO.replace("reference: {like: actor}", "reference: {like: actor}\n  critic: {like: actor}").replace(
            "reward: {f", "# reward: {f"
        ),
        "",
        "stages:\n  worth: {op: forward, model: critic, head: scalar, in: [sequences], out: [rewards]}",
        "  worth: {op",
        "grpo on verl has no values",
    ),
    "values without a stage of the critic": (
        PPO,
        "",
        "stages:\n  values: {op: function, in: [sequences], out: [values]}",
        "  values: {op",
        "no place for values",
    ),
    "a sandbox": (
        GRPO,
        "",
        "stages:\n  sandbox: {op: function, in: [sequences], out: [traces]}\n"
        "  verify: {op: function, in: [traces], out: [rewards]}",
        "  sandbox: {op",
        "no place for traces",
    ),
    "a reward function that reads log-probs": (
        GRPO.replace("reward: {f", "# reward: {f"),
        "",
        "stages:\n  verify: {op: function, in: [sequences, old_logprobs], out: [rewards]}",
        "  verify: {op",
        "the texts of one sample, not old_logprobs",
    ),
}


def written(case: str) -> tuple[str, int, str]:
    """Return the pipeline text of a case, the line to be shown, and words of the message."""
    text, old, new, line, words = CASES[case]
    text = text.replace(old, new, 1) if old else f"{text}{new}\n"
    numbers = [number for number, content in enumerate(text.splitlines(), 1) if content.startswith(line)]
    assert len(numbers) == 1, numbers
    return text, numbers[0], words


@pytest.mark.parametrize("case", CASES)
def test_refusal_shows_the_line(case: str) -> None:
    text, line, words = written(case)
    pipeline = pipeline_from_text(text)
    with pytest.raises(InputError) as caught:
        setting_of(pipeline, Options())
    assert caught.value.position is not None
    assert caught.value.position.line == line
    assert words in caught.value.message
    assert text.splitlines()[line - 1] in str(caught.value)


@pytest.mark.parametrize("text", [GRPO, PPO, GRPO.replace("training: {", "training: {lora_rank: 16, ")])
def test_pipelines_that_verl_can_run_are_not_refused(text: str) -> None:
    free = "target_overrides: {+actor_rollout_ref.rollout.engine_kwargs.vllm.x: 1, critic.optim.lr: 1e-5}\n"
    assert structures(setting_of(pipeline_from_text(text + free), Options()))


def test_a_planned_key_names_the_stage_of_the_pipeline_to_fix() -> None:
    """Also before there is a plan, and where the stage is the user's own."""
    own = "stages:\n  learn: {op: train, model: actor, in: [sequences, behaviour_logprobs, old_logprobs, advantages, "
    own += "reference_logprobs]}\n  update_actor: null\n"
    asked = "target_overrides: {actor_rollout_ref.actor.ppo_max_token_len_per_gpu: 4096}\n"
    for text, stage in ((GRPO + asked, "update_actor"), (GRPO + own + asked, "learn")):
        with pytest.raises(InputError) as caught:
            setting_of(pipeline_from_text(text), Options())
        assert f"write `fix: {{{stage}: {{token_budget: ...}}}}` instead" in str(caught.value)


def test_check_shows_the_line_too(tmp_path: Path) -> None:
    text, line, words = written("adapters for a critic")
    file = tmp_path / "refused.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=f"refused.yaml:{line}:") as caught:
        check_file(file)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", [GRPO, PPO])
def test_names_of_the_presets_stages(text: str) -> None:
    """The backend knows by name which stages the presets make; this holds the two together."""
    pipeline = pipeline_from_text(text)
    made = {
        PLACES[recipe.op.value, recipe.model]: recipe.name for recipe in stage_recipes(pipeline.spec) if recipe.model
    }
    parts = parts_wanted(Request(pipeline.resolved()))
    assert made == {part: PRESET_STAGES[part] for part in parts}


def test_a_structure_without_placement_names_the_stage() -> None:
    """Whatever a target lacks: here, all but one-step-off, which has no place for a reward model."""
    setting = setting_of(pipeline_from_text(PPO), Options())
    placements = [pattern for pattern in setting.context.capabilities.placements if pattern.mode == "one-step-off"]
    fewer = replace(setting.context.capabilities, placements=tuple(placements))
    with pytest.raises(InputError) as caught:
        structures(replace(setting, context=replace(setting.context, capabilities=fewer), engines=(fewer,)))
    assert "`one-step-off` has no place for `reward` (forward of reward)" in caught.value.message
    assert caught.value.position is not None
    assert caught.value.position.text.startswith("  reward:")


def test_a_role_that_verl_has_no_place_for_fits_no_colocated_placement() -> None:
    for pattern in backend("verl").capabilities().placements:
        if pattern.mode == "sync":
            assert pattern.homes["*"] == ()
