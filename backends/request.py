"""What every backend asks of a resolved pipeline: batch sizes, lengths, paths, learning settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rpegc.emit import TargetRefusal

MISSING = "RPEGC_MISSING"
"""Stands where the pipeline says nothing; the emitted preflight refuses to start while one is left."""

NOWHERE_YET = dict.fromkeys(("dpo", "online-dpo"), "no target launches pairs of responses yet; `rpegc show` draws them")
"""What to say of presets that no target has, instead of naming another target."""


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """The resolved pipeline behind a plan, with typed access; each backend adds its own words."""

    target: ClassVar[str] = "the target"
    pipeline: Mapping[str, Any]

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at a dotted path; the default where any part is absent or null."""
        value: Any = self.pipeline
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
            if value is None:
                return default
        return value

    def setting(self, path: str) -> Any:
        """Return a setting, or the marker that preflight refuses."""
        value = self.get(path)
        return f"{MISSING}.{path}" if value is None else value

    def model_path(self, role: str, kind: str) -> str:
        """Return a role's `weights` or `tokenizer` (absent = the weights'), or the marker that preflight refuses."""
        found = self.get(f"models.{role}.{kind}") or self.get(f"models.{role}.weights")
        return str(found) if found else f"{MISSING}.models.{role}.weights"

    @property
    def prompts(self) -> int:
        """Prompts of one RL step."""
        return int(self.pipeline["workload"]["prompts_per_step"])

    @property
    def samples(self) -> int:
        """Responses for each prompt."""
        return int(self.get("workload.samples_per_prompt", 1))

    @property
    def sequences(self) -> int:
        """Sequences of one RL step."""
        return self.prompts * self.samples

    @property
    def minibatches(self) -> int:
        """Optimizer updates of one pass over a step's samples."""
        return int(self.get("workload.minibatches_per_step", 1))

    @property
    def epochs(self) -> int:
        """Passes over a step's samples."""
        return int(self.get("training.epochs_per_batch", 1))

    @property
    def updates(self) -> int:
        """Optimizer updates of one RL step."""
        return self.minibatches * self.epochs

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt."""
        return self._longest("prompt_tokens")

    @property
    def max_response_tokens(self) -> int:
        """Longest response."""
        return self._longest("response_tokens")

    @property
    def kl_where(self) -> str:
        """Where the KL penalty acts: "loss", "reward", or "none" if its coefficient is 0."""
        return str(self.get("training.kl.where", "loss")) if self.get("training.kl.coefficient", 0) else "none"

    @property
    def lora_rank(self) -> int:
        """Rank of the adapters; 0 trains the weights."""
        return int(self.get("training.lora_rank", 0))

    def workload_columns(self) -> dict[str, int]:
        """Return the workload's context columns of rules."""
        return {
            "lora_rank": self.lora_rank,
            "prompts_per_step": self.prompts,
            "samples_per_prompt": self.samples,
            "sequences_per_step": self.sequences,
            "sequences_per_update": self.sequences // self.minibatches,
            "prompts_per_update": self.prompts // self.minibatches,
            "max_prompt_tokens": self.max_prompt_tokens,
            "max_response_tokens": self.max_response_tokens,
            "max_sequence_tokens": self.max_prompt_tokens + self.max_response_tokens,
        }

    def _longest(self, which: str) -> int:
        lengths = self.pipeline["workload"][which]
        longest = lengths.get("fixed") or lengths.get("max")
        if not longest:
            message = f"workload.{which}: {self.target} needs the longest length"
            raise TargetRefusal(message, ("workload", which), "give `max` or `fixed`")
        return int(longest)


STAGE_KEYS = ("samples_per_prompt", "oversampling", "prompt_tokens", "response_tokens", "turns")
"""Keys of a stage of the user's that neither TRL nor OpenRLHF can carry out: every stage has the step's sequences."""


def two_kinds_of_machine(request: PipelineRequest) -> Iterator[TargetRefusal]:
    """Yield a refusal of a cluster of two kinds of machine: the emitted job asks for one kind of node."""
    if request.get("cluster.pools") is not None:
        message = f"cluster.pools: launches for {request.target} ask for one kind of node"
        yield TargetRefusal(message, ("cluster", "pools"), "write `hardware` and `nodes`, or `target: native`")


def no_such_engine(request: PipelineRequest) -> Iterator[TargetRefusal]:
    """Yield a refusal of a training engine asked for by name: the target has one, which has no name."""
    if request.get("engine") is not None:
        message = (
            f"engine: {request.target} has one training engine, DeepSpeed, and no choice of {request.get('engine')!r}"
        )
        yield TargetRefusal(message, ("engine",), "leave it out, or write `target: verl`")


def odd_stages(request: PipelineRequest) -> Iterator[TargetRefusal]:
    """Yield a refusal for each stage that works on other sequences than the step's, or in several turns."""
    for name, stage in request.get("stages", {}).items():
        for key in STAGE_KEYS:
            if stage is not None and stage.get(key) is not None:
                message = (
                    f"stages.{name}.{key}: {request.target} runs every stage on the step's own sequences, in one turn"
                )
                yield TargetRefusal(message, ("stages", name, key), "leave it out, or use another target")
    if request.get("loss.overlong_buffer_tokens", 0):
        message = f"reward.overlong: {request.target} launches are not written for a punishment of long responses"
        yield TargetRefusal(message, ("reward", "overlong"), "leave it out, or write `target: verl`")


def texts_of(request: PipelineRequest) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the texts of the user's that a launch carries, with their places in the pipeline."""
    paths = [("name",), ("reward", "function")]
    paths += [("data", key) for key in ("train", "val", "prompt_key", "answer_key")]
    paths += [("models", role, key) for role in request.get("models", {}) for key in ("weights", "tokenizer")]
    for path in paths:
        value = request.get(".".join(path))
        if value is not None:
            yield path, str(value)
