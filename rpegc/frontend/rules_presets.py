"""What an algorithm demands of the rest of the file: samples to compare, a critic, a reference, a teacher, rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rpegc.frontend.presets import all_presets, loss_of, preset_of
from rpegc.frontend.schema import PipelineSpec
from rpegc.frontend.yaml_source import KeyPath


@dataclass(frozen=True, slots=True)
class Violation:
    """What does not hold, with its values; where to point; what would be right."""

    path: KeyPath
    message: str
    hint: str | None = None


def preset_rules(spec: PipelineSpec) -> Iterator[Violation]:
    """Yield what the algorithm of a pipeline misses or cannot use; nothing for an algorithm that is no preset."""
    if spec.algorithm in all_presets():
        for rule in PRESET_RULES:
            yield from rule(spec)


def _group(spec: PipelineSpec) -> Iterator[Violation]:
    """Groups have something to compare; pairs are two."""
    preset, samples = preset_of(spec), spec.workload.samples_per_prompt
    path = ("workload", "samples_per_prompt")
    if preset.most_samples and samples != preset.most_samples:
        message = f"{preset.name} learns from pairs: samples_per_prompt must be {preset.most_samples}, is {samples}"
        yield Violation(path, message, "a prompt comes with a chosen and a rejected response")
    elif samples < preset.least_samples:
        message = (
            f"{preset.name} compares the samples of one prompt: samples_per_prompt must be at least "
            f"{preset.least_samples}, is {samples}"
        )
        yield Violation(path, message)


def _clip(spec: PipelineSpec) -> Iterator[Violation]:
    """The clip range is [low, high] with 0 < low <= high and low < 1; weights may be clipped from above alone."""
    if spec.training.clip is None or loss_of(spec).kind == "clipped-weight":
        return
    low, high = spec.training.clip
    if low > high:
        hint = "the first number bounds the ratio below 1, the second above"
        yield Violation(
            ("training", "clip"), f"clip is [low, high] with low <= high: low is {low:g}, high is {high:g}", hint
        )
    elif low >= 1:
        yield Violation(
            ("training", "clip"), f"the lower clip must be less than 1: it is {low:g}, so that 1 - low is {1 - low:g}"
        )


def _reference(spec: PipelineSpec) -> Iterator[Violation]:
    """A KL penalty needs a reference; learning from preferences needs beta, which is its coefficient."""
    kl, algorithm = spec.training.kl, spec.algorithm
    supplied = any(stage is not None and "reference_logprobs" in stage.outputs for stage in spec.stages.values())
    preference = loss_of(spec).kind == "preference"
    if kl.coefficient > 0 and "reference" not in spec.models and not supplied and not preference:
        message = f"training.kl.coefficient is {kl.coefficient:g}, but `models` has no `reference` to stay near"
        yield Violation(
            ("training", "kl", "coefficient"), message, "add `reference: {like: actor}` to models, or set it to 0"
        )
    if preference and kl.coefficient == 0:
        message = f"{algorithm} needs training.kl.coefficient: the beta of its loss, which must not be 0"
        yield Violation(("training", "kl", "coefficient"), message, "DPO's authors take 0.1 (arXiv 2305.18290)")
    if preference and kl.where == "reward":
        message = f"the beta of {algorithm} acts in the loss: training.kl.where cannot be `reward`"
        yield Violation(("training", "kl", "where"), message, "leave it out")


def _roles(spec: PipelineSpec) -> Iterator[Violation]:
    """Roles without which an algorithm makes no sense."""
    supplied = {value for stage in spec.stages.values() if stage is not None for value in stage.outputs}
    if loss_of(spec).advantages == "critic" and "critic" not in spec.models and "values" not in supplied:
        hint = "add `critic: {like: actor}` to models, or use `algorithm: grpo`, which needs none"
        yield Violation(("models",), "ppo needs `models.critic`: the model that estimates values", hint)
    for role, what in preset_of(spec).needs:
        if role not in spec.models and f"{role}_logprobs" not in supplied:
            entry = "{like: actor}" if role == "reference" else "{config: NAME_OR_PATH}"
            message = f"{spec.algorithm} needs `models.{role}`: {what}"
            yield Violation(("models",), message, f"add `{role}: {entry}` to models")


def _rewards(spec: PipelineSpec) -> Iterator[Violation]:
    """Rewards are of use; the part of the response where length is punished is a part of it."""
    if spec.reward is not None and not preset_of(spec).judged:
        message = f"{spec.algorithm} learns from the preferences of the data: a `reward` block is of no use to it"
        yield Violation(("reward",), message, "remove it, or use `algorithm: online-dpo`")
    if spec.reward is not None and spec.reward.overlong is not None:
        tokens, longest = spec.reward.overlong.buffer_tokens, spec.workload.response_tokens.longest
        if tokens > longest:
            message = f"reward.overlong.buffer_tokens must be at most the longest response: {tokens} > {longest}"
            yield Violation(("reward", "overlong", "buffer_tokens"), message)


def _oversampling(spec: PipelineSpec) -> Iterator[Violation]:
    """Only dynamic sampling generates more than it trains on."""
    if spec.workload.oversampling is not None and not preset_of(spec).oversampling:
        known = [preset.name for preset in all_presets().values() if preset.oversampling]
        message = f"workload.oversampling means nothing to {spec.algorithm}, which trains on all that it generates"
        yield Violation(("workload", "oversampling"), message, f"remove it, or use {' or '.join(known)}")


PRESET_RULES: tuple[Callable[[PipelineSpec], Iterator[Violation]], ...] = (
    _group,
    _clip,
    _reference,
    _roles,
    _rewards,
    _oversampling,
)
