"""What one stage has to do in one RL step: the input of every price. Built by the compiler from stage and pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from rpegc.architecture import Architecture
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths


@dataclass(frozen=True, slots=True)
class StageWork:
    """The work of one stage in one RL step.

    `framework` ("verl", "deepspeed", "native") and `engine_class` ("fsdp", "megatron") select constants. `head` is
    "logits" (a language model) or "scalar" (critic, reward model). `trained` says whether this role's weights are
    trained anywhere (then a forward pass runs inside the training engine and shares its weights). `sequences` are
    prompts * samples_per_prompt; a train stage runs them `epochs` times in `minibatches` updates per epoch.
    `samples_in_flight_steps` counts copies of the step's buffers that live at once (1 when synchronous).
    Functions: `cpu_seconds_per_sample` on `workers_per_node` workers. `engine_flags` are engine facts that change
    prices (for example "eager", "lora"). `double_buffered` weights: a second copy while publication overlaps.
    """

    stage: str
    op: Op
    role: str
    architecture: Architecture | None
    framework: str
    engine_class: str
    prompts: int
    samples_per_prompt: int
    minibatches: int
    epochs: int
    prompt_tokens: Lengths
    response_tokens: Lengths
    head: str = "logits"
    trained: bool = False
    lora_rank: int = 0
    cpu_seconds_per_sample: float = 0.0
    workers_per_node: int = 1
    engine_flags: frozenset[str] = frozenset()
    double_buffered: bool = False
    samples_in_flight_steps: int = 1

    @property
    def sequences(self) -> int:
        """Sequences of one RL step."""
        return self.prompts * self.samples_per_prompt

    @property
    def mean_tokens(self) -> float:
        """Mean prompt plus response tokens of a sequence."""
        return self.prompt_tokens.mean + self.response_tokens.mean

    @property
    def max_tokens(self) -> int:
        """Longest prompt plus longest response."""
        return int(self.prompt_tokens.max + self.response_tokens.max)
