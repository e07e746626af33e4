"""What a plan's pipeline asks of the native engine, read once; knows the options that `target_overrides` may set.

No torch here: the compiler's backend reads the same table before anything is searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rpegc.errors import InputError, guess

ESTIMATORS = ("grpo", "rloo", "reinforce++", "gae")
AGGREGATIONS = ("token-mean", "sequence-mean", "sequence-sum", "constant-length")


@dataclass(frozen=True, slots=True)
class Option:
    """One key of `target_overrides`: default, allowed words (empty: any value of the default's type), what it does."""

    default: str | int | float | bool
    choices: tuple[str, ...]
    what: str


OPTIONS: dict[str, Option] = {
    "advantage": Option("", ESTIMATORS, "advantage estimator; absent = the algorithm's own"),
    "normalise_by_deviation": Option(True, (), "divide by the group's standard deviation; false as in Dr. GRPO"),
    "aggregation": Option("token-mean", AGGREGATIONS, "how token losses become one number; DAPO: token-mean"),
    "discount": Option(1.0, (), "discount of later rewards (PPO, REINFORCE++)"),
    "gae_lambda": Option(1.0, (), "lambda of the generalised advantage estimate"),
    "value_clip": Option(0.5, (), "how far a value may move from its old estimate before its loss is clipped"),
    "importance_cap": Option(2.0, (), "truncation of the weight of stale samples; 0 leaves them uncorrected"),
    "critic_learning_rate": Option(0.0, (), "learning rate of the critic; 0 = that of the actor"),
    "weight_decay": Option(0.01, (), "decoupled weight decay of AdamW"),
    "gradient_clip": Option(1.0, (), "largest norm of a gradient"),
    "warmup_steps": Option(0, (), "optimizer updates over which the learning rate rises"),
    "precision": Option("bf16", ("bf16", "fp32"), "number format of forward and backward; masters are always fp32"),
    "reward_limit_s": Option(10.0, (), "seconds after which a reward function's process is killed and scores 0"),
    "reward_limit_bytes": Option(4 * 2**30, (), "address space of a reward process"),
    "checkpoint_folder": Option("checkpoints", (), "folder of checkpoints, relative to the run folder"),
    "keep_checkpoints": Option(2, (), "checkpoints kept"),
    "debug": Option(False, (), "check every weight that is resharded, bit for bit"),
}
"""The keys that the native target takes in `target_overrides`."""

ALGORITHMS: dict[str, dict[str, str | bool]] = {
    "grpo": {"advantage": "grpo"},
    "dr-grpo": {"advantage": "grpo", "normalise_by_deviation": False, "aggregation": "constant-length"},
    "rloo": {"advantage": "rloo", "aggregation": "sequence-sum"},
    "reinforce++": {"advantage": "reinforce++"},
    "ppo": {"advantage": "gae"},
}
"""What a preset means here: the options it sets, which `target_overrides` may set otherwise."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved pipeline with typed access. Lengths in tokens; `options` holds every key of `OPTIONS`."""

    pipeline: Mapping[str, Any]
    seed: int
    options: Mapping[str, Any]

    @property
    def prompts(self) -> int:
        """Prompts of one RL step."""
        return int(self.pipeline["workload"]["prompts_per_step"])

    @property
    def samples(self) -> int:
        """Responses of each prompt."""
        return int(self.pipeline["workload"]["samples_per_prompt"])

    @property
    def minibatches(self) -> int:
        """Optimizer updates of one pass over a step's samples."""
        return int(self.pipeline["workload"]["minibatches_per_step"])

    @property
    def epochs(self) -> int:
        """Passes over a step's samples."""
        return int(self.training["epochs_per_batch"])

    @property
    def training(self) -> Mapping[str, Any]:
        """The block `training`."""
        block: Mapping[str, Any] = self.pipeline["training"]
        return block

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt."""
        return self._longest("prompt_tokens")

    @property
    def max_response_tokens(self) -> int:
        """Longest response."""
        return self._longest("response_tokens")

    @property
    def temperature(self) -> float:
        """Sampling temperature; log-probs are those of the tempered distribution."""
        return float(self.training["temperature"])

    @property
    def clip(self) -> tuple[float, float]:
        """How far the ratio may go below and above 1."""
        low, high = self.training["clip"]
        return float(low), float(high)

    @property
    def kl(self) -> tuple[float, str, str]:
        """Coefficient, place ("loss" or "reward") and estimator of the KL penalty."""
        block = self.training["kl"]
        return float(block["coefficient"]), str(block["where"]), str(block["estimator"])

    @property
    def total_steps(self) -> int:
        """RL steps of the run. Raises InputError if the pipeline leaves them out."""
        return int(self._required("total_steps"))

    @property
    def learning_rate(self) -> float:
        """Learning rate of the actor. Raises InputError if the pipeline leaves it out."""
        return float(self._required("learning_rate"))

    @property
    def save_every(self) -> int:
        """RL steps between checkpoints; 0 = only at the end."""
        return int(self.training["save_every"] or 0)

    def _required(self, key: str) -> Any:
        value = self.training.get(key)
        if value is None:
            raise InputError(
                f"training.{key} is missing: a run needs it", hint=f"give training.{key} and compile again"
            )
        return value

    def _longest(self, which: str) -> int:
        lengths = self.pipeline["workload"][which]
        return int(lengths.get("fixed") or lengths.get("max"))


def settings_of(pipeline: Mapping[str, Any], seed: int) -> Settings:
    """Read a resolved pipeline. Raises InputError for an algorithm or option that the engine does not have."""
    return Settings(pipeline, seed, options_of(pipeline))


def options_of(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option with the algorithm's and then the user's values. Raises InputError as `settings_of` does."""
    algorithm = str(pipeline["algorithm"])
    if algorithm not in ALGORITHMS:
        raise InputError(f"algorithm: the native engine does not run {algorithm!r}", hint=guess(algorithm, ALGORITHMS))
    values: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()}
    values |= ALGORITHMS[algorithm]
    for name, value in pipeline.get("target_overrides", {}).items():
        values[name] = _checked(str(name), value)
    if values["advantage"] == "gae" and algorithm != "ppo":
        raise InputError(f"target_overrides.advantage: gae needs a critic, which {algorithm} does not have")
    if algorithm == "ppo" and values["advantage"] != "gae":
        raise InputError("target_overrides.advantage: ppo's critic would be without use; take an algorithm without one")
    return values


def _checked(name: str, value: Any) -> Any:
    if name not in OPTIONS:
        raise InputError(f"target_overrides.{name}: the native engine has no such option", hint=guess(name, OPTIONS))
    option = OPTIONS[name]
    if option.choices and value not in option.choices:
        raise InputError(f"target_overrides.{name}: must be one of {', '.join(option.choices)}, is {value!r}")
    if isinstance(option.default, bool | str):
        if type(value) is not type(option.default):
            raise InputError(f"target_overrides.{name}: must be like {option.default!r}, is {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InputError(f"target_overrides.{name}: must be a number of at least 0, is {value!r}")
    if isinstance(option.default, int) and not isinstance(value, int):
        raise InputError(f"target_overrides.{name}: must be a whole number, is {value!r}")
    return type(option.default)(value)
