"""What the resolved pipeline asks for, read once: batch sizes, lengths, paths, learning settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.verl.capabilities import COLOCATE_ASYNC, COMPLETION_ORDER, ONE_STEP_OFF, REUSE_LOGPROBS, SEPARATE_ASYNC
from backends.verl.hydra import Raw, Value, plain_text, quoted
from rpegc.emit import TargetRefusal
from rpegc.errors import guess
from rpegc.plan import Plan

MISSING = "RPEGC_MISSING"
"""Stands where the pipeline says nothing; the emitted preflight refuses to start while one is left."""

ESTIMATORS = {
    "grpo": "grpo",
    "dapo": "grpo",
    "dr-grpo": "grpo",
    "gspo": "grpo",
    "cispo": "grpo",
    "distill": "grpo",
    "ppo": "gae",
    "rloo": "rloo",
    "remax": "remax",
    "reinforce++": "reinforce_plus_plus",
}
"""verl's `algorithm.adv_estimator` by the name of our preset."""

NO_LOSS = {
    "dpo": "verl has no loss over pairs of responses",
    "online-dpo": "verl has no loss over pairs of responses",
}
"""Presets that verl has no loss for, and why."""
LOSSES = "verl/trainer/ppo/core_algos.py: POLICY_LOSS_REGISTRY"

KL_ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
"""verl's word for each estimator of the KL divergence (verl/trainer/ppo/core_algos.py, kl_penalty_forward)."""

PLAIN_LOSS = {"kind": "clipped", "aggregation": "token-mean", "advantages": "group-normalised"}

PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class Request:
    """The resolved pipeline behind a plan, with typed access."""

    pipeline: Mapping[str, Any]

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at a dotted path; the default where any part is absent or null."""
        value: Any = self.pipeline
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
            if value is None:
                return default
        return value

    def setting(self, path: str) -> Value:
        """Return a setting, or the marker that preflight refuses."""
        value: Value = self.get(path)
        return f"{MISSING}.{path}" if value is None else value

    def file(self, path: str) -> Value | Raw:
        """Return a file of the user; a relative one is anchored in the folder that the job was submitted from."""
        text = self.get(path)
        return f"{MISSING}.{path}" if text is None else anchored(str(text), path)

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
    def minibatches(self) -> int:
        """Optimizer updates of one pass over a step's samples."""
        return int(self.get("workload.minibatches_per_step", 1))

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

    @property
    def needs_critic(self) -> bool:
        """Whether the advantages need a critic."""
        return self.estimator == "gae"

    @property
    def other_modes(self) -> tuple[str, ...]:
        """Launch modes beside sync that a plan may choose; see PLACEMENTS in capabilities.py for what each needs."""
        if int(self.get("allow.max_staleness", 0)) < 1 or self.samples_dynamically or self.distils:
            return ()
        changes = self.get("allow.model_changes", ())
        found = [COLOCATE_ASYNC] if self.get("allow.partial_rollout", False) and not self.before_v1 else []
        if not self.before_v1 and COMPLETION_ORDER in changes and REUSE_LOGPROBS in changes and not self.lora_rank:
            found.append(SEPARATE_ASYNC)
        if not (self.needs_critic or self.lora_rank or self.get("models.reward") is not None):
            found.append(ONE_STEP_OFF)
        return tuple(found)

    @property
    def pinned_engine(self) -> str:
        """The training engine that the pipeline asks for; "" leaves it to the planner."""
        return str(self.get("engine") or "")

    def loss(self, word: str) -> str:
        """Return how the loss is put together (`loss` of a resolved pipeline); plain GRPO's where it does not say."""
        return str(self.get(f"loss.{word}", PLAIN_LOSS[word]))

    @property
    def samples_dynamically(self) -> bool:
        """Whether groups without anything to learn from are replaced by others."""
        return bool(self.get("algorithm") == "dapo")

    @property
    def overlong(self) -> tuple[int, float] | None:
        """Tokens before the longest response in which length is punished, and how much; None without punishment."""
        tokens = int(self.get("loss.overlong_buffer_tokens", 0))
        return (tokens, float(self.get("loss.overlong_penalty", 0.0))) if tokens else None

    @property
    def distils(self) -> bool:
        """Whether a teacher is imitated."""
        return bool(self.get("algorithm") == "distill")

    @property
    def before_v1(self) -> bool:
        """Whether only the trainer before V1 can carry it out: V1 never makes the baselines of ReMax."""
        return bool(self.get("algorithm") == "remax")

    @property
    def generated(self) -> int:
        """Sequences that one request to the agent loops generates: with ReMax a greedy one of each prompt too."""
        return self.prompts * (self.samples + int(self.before_v1))

    @property
    def judged(self) -> bool:
        """Whether anything gives rewards."""
        return self.get("reward") is not None or self.get("models.reward") is not None

    @property
    def estimator(self) -> str:
        """The advantage estimator in verl's words; TargetRefusal for an algorithm that it is not written for."""
        algorithm = str(self.get("algorithm", ""))
        if algorithm in NO_LOSS:
            message = f"algorithm {algorithm}: {NO_LOSS[algorithm]} [{LOSSES}]"
            raise TargetRefusal(message, ("algorithm",), f"verl has {', '.join(sorted(ESTIMATORS))}")
        if algorithm not in ESTIMATORS:
            message = f"algorithm: verl launches are not written for {algorithm!r}"
            raise TargetRefusal(message, ("algorithm",), guess(algorithm, ESTIMATORS))
        return ESTIMATORS[algorithm]

    @property
    def dtype(self) -> str:
        """The precision of weights and activations in verl's words."""
        return PRECISIONS[str(self.get("training.precision", "bf16"))]

    def workload_columns(self) -> dict[str, int]:
        """Return the workload's context columns of rules (see backends/verl/rules.py)."""
        sequences = self.prompts * self.samples
        return {
            "lora_rank": self.lora_rank,
            "prompts_per_step": self.prompts,
            "samples_per_prompt": self.samples,
            "sequences_per_step": sequences,
            "sequences_per_update": sequences // self.minibatches,
            "prompts_per_update": self.prompts // self.minibatches,
            "max_prompt_tokens": self.max_prompt_tokens,
            "max_response_tokens": self.max_response_tokens,
            "max_sequence_tokens": self.max_prompt_tokens + self.max_response_tokens,
        }

    def _longest(self, which: str) -> int:
        lengths = self.pipeline["workload"][which]
        longest = lengths.get("fixed") or lengths.get("max")
        if not longest:
            raise TargetRefusal(
                f"workload.{which}: verl needs the longest length", ("workload", which), "give `max` or `fixed`"
            )
        return int(longest)


def request_of(plan: Plan) -> Request:
    """Return the request behind a plan."""
    return Request(plan.pipeline)


def anchored(text: str, what: str) -> Value | Raw:
    """Return a path as a value: absolute paths and URIs as they are, others below `RPEGC_WORK_DIR` on every node."""
    checked = plain_text(text, what)
    if checked.startswith(("/", "~")) or "://" in checked:
        return checked
    return Raw(quoted("${oc.env:RPEGC_WORK_DIR,.}/" + checked))
