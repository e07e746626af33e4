"""What the resolved pipeline asks for, read once: batch sizes, lengths, paths, learning settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from backends.request import MISSING, PipelineRequest
from backends.verl.capabilities import COLOCATE_ASYNC, COMPLETION_ORDER, ONE_STEP_OFF, REUSE_LOGPROBS, SEPARATE_ASYNC
from backends.verl.hydra import Raw, Value, plain_text, quoted
from rpegc.emit import TargetRefusal
from rpegc.errors import guess
from rpegc.plan import Plan

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
class Request(PipelineRequest):
    """The resolved pipeline behind a plan, in verl's words."""

    target: ClassVar[str] = "verl"

    def file(self, path: str) -> Value | Raw:
        """Return a file of the user; a relative one is anchored in the folder that the job was submitted from."""
        text = self.get(path)
        return f"{MISSING}.{path}" if text is None else anchored(str(text), path)

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


def request_of(plan: Plan) -> Request:
    """Return the request behind a plan."""
    return Request(plan.pipeline)


def anchored(text: str, what: str) -> Value | Raw:
    """Return a path as a value: absolute paths and URIs as they are, others below `RPEGC_WORK_DIR` on every node."""
    checked = plain_text(text, what)
    if checked.startswith(("/", "~")) or "://" in checked:
        return checked
    return Raw(quoted("${oc.env:RPEGC_WORK_DIR,.}/" + checked))
