"""What one stage has to do in one RL step: the input of every price. Built by the compiler from stage and pipeline.

A stage works on the step's sequences unless its attributes say otherwise: `oversampling` prompts for each prompt that
is trained on, `samples_per_prompt` sequences of each, `inputs_per_prompt` where a stage generates from what was
generated, lengths of its own (`prompt_mean`, `prompt_p99`, `prompt_max`, the same of `response`), `turns` between
which the function stage `environment` answers with `observation_tokens` in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rpegc.architecture import Architecture
from rpegc.cost.segments import segment
from rpegc.ir.graph import Graph, Op, Stage
from rpegc.ir.meaning import CARRIES, SAMPLES, TAIL_SHARE
from rpegc.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding: `draft_tokens` are proposed each step, of which `accepted_share` hold in the mean.

    A draft costs `draft_share` of a pass through the model (a layer for multi-token prediction, a small model's size
    over that of the large one). Samples follow the same distribution (Leviathan et al., arXiv 2211.17192).
    """

    draft_tokens: int
    accepted_share: float
    draft_share: float

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step adds to a sequence: the model's own, and the drafts that hold."""
        return 1.0 + self.draft_tokens * self.accepted_share


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
    `passes`: a forward stage whose input is streamed runs its sequences in so many portions. `samples` and
    `tail_share` say which part of the step's samples a generate stage finishes (see `rpegc.cost.segments`); its
    counts and lengths are those of that part.
    Between `turns` an environment takes `turn_cpu_seconds` on one of `turn_workers_per_node` workers and adds
    `observation_tokens`, which count as response tokens but are read, not generated.
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
    passes: int = 1
    samples: str = ""
    tail_share: float = 0.0
    speculation: Speculation | None = None
    turns: int = 1
    observation_tokens: float = 0.0
    turn_cpu_seconds: float = 0.0
    turn_workers_per_node: int = 1

    @property
    def observed_tokens(self) -> float:
        """Mean tokens of a response that an environment adds."""
        return (self.turns - 1) * self.observation_tokens

    @property
    def generated_tokens(self) -> Lengths:
        """Lengths of what is generated of a response: all but what an environment adds."""
        if not self.observed_tokens:
            return self.response_tokens
        return self.response_tokens.scaled(1.0 - self.observed_tokens / self.response_tokens.mean)

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


@dataclass(frozen=True, slots=True)
class WorkContext:
    """What all stages of a pipeline have in common: models by role, counts, lengths, framework and engine class.

    `class_for(op, role)` names the engine class of stages that another engine runs than the training engine's.
    """

    architectures: Mapping[str, Architecture]
    prompts: int
    samples_per_prompt: int
    minibatches: int
    epochs: int
    prompt_tokens: Lengths
    response_tokens: Lengths
    lora_ranks: Mapping[str, int]
    framework: str
    engine_class: str
    class_for: Callable[[str, str], str] | None = None


def stage_works(graph: Graph, context: WorkContext) -> dict[str, StageWork]:
    """Return the work of every stage but the syncs, by stage name."""
    return {stage.name: _work(stage, graph, context) for stage in graph.stages if stage.op is not Op.SYNC}


def _work(stage: Stage, graph: Graph, context: WorkContext) -> StageWork:
    served_rank = context.lora_ranks.get(stage.model, 0)
    trained = any(other.op is Op.TRAIN and other.model == stage.model for other in graph.stages)
    distance = max(
        (edge.distance for edge in graph.edges if edge.target == stage.name and "weights" in edge.value), default=1
    )
    environment = str(stage.attribute("environment", ""))
    answering = graph.stage(environment) if environment and graph.has(environment) else stage
    inputs = int(stage.attribute("inputs_per_prompt", 1))
    work = StageWork(
        stage=stage.name,
        op=stage.op,
        role=stage.model,
        architecture=context.architectures.get(stage.model),
        framework=context.framework,
        engine_class=context.class_for(stage.op.value, stage.model) if context.class_for else context.engine_class,
        prompts=math.ceil(context.prompts * inputs * float(stage.attribute("oversampling", 1.0))),
        samples_per_prompt=int(stage.attribute("samples_per_prompt", context.samples_per_prompt)),
        minibatches=context.minibatches if stage.op is Op.TRAIN else 1,
        epochs=context.epochs if stage.op is Op.TRAIN else 1,
        prompt_tokens=_own_lengths(stage, "prompt") or context.prompt_tokens,
        response_tokens=_own_lengths(stage, "response") or context.response_tokens,
        head=str(stage.attribute("head", "logits")),
        trained=trained,
        lora_rank=0 if stage.attribute("adapter", "on") == "off" else served_rank,
        cpu_seconds_per_sample=float(stage.attribute("cpu_seconds_per_sample", 0.0)),
        workers_per_node=int(stage.attribute("workers_per_node", 1)),
        engine_flags=_engine_flags(stage, served_rank, distance),
        double_buffered=stage.op is Op.GENERATE and distance > 1,
        samples_in_flight_steps=max(1, distance),
        passes=_passes(stage, graph),
        turns=int(stage.attribute("turns", 1)),
        observation_tokens=float(stage.attribute("observation_tokens", 0.0)),
        turn_cpu_seconds=float(answering.attribute("cpu_seconds_per_sample", 0.0)),
        turn_workers_per_node=int(answering.attribute("workers_per_node", 1)),
    )
    return _part(work, stage) if stage.op is Op.GENERATE else work


def _part(work: StageWork, stage: Stage) -> StageWork:
    """Return the work of an engine that does only part of the samples, or segments of them."""
    samples, carries = str(stage.attribute(SAMPLES)), int(stage.attribute(CARRIES, 0))
    if not samples and not carries:
        return work
    share = float(stage.attribute(TAIL_SHARE, 0.0))
    part = segment(work.prompt_tokens, work.response_tokens, samples, share, carries)
    total = part.share * work.sequences
    # Sequences that share no prompt with others are prefilled one by one; whole numbers, rounded up.
    distinct = (work.prompts if samples != "tail" else 0) + part.prefilled * work.sequences
    per_prompt = max(1, round(total / distinct))
    return replace(
        work,
        prompts=max(1, math.ceil(total / per_prompt)),
        samples_per_prompt=per_prompt,
        prompt_tokens=part.prompt,
        response_tokens=part.response,
        samples=samples,
        tail_share=share,
    )


def _passes(stage: Stage, graph: Graph) -> int:
    """Return in how many portions a forward stage gets its samples: the chunks of its edges, or a head and a tail."""
    if stage.op is not Op.FORWARD:
        return 1
    chunked = [edge for edge in graph.into(stage.name) if edge.chunks > 1]
    tails = [edge for edge in chunked if graph.stage(edge.source).attribute(SAMPLES) == "tail"]
    streamed = max((edge.chunks for edge in chunked if edge not in tails), default=1)
    return max(streamed, 2 if tails else 1)


def _own_lengths(stage: Stage, key: str) -> Lengths | None:
    """Return the lengths that a stage's attributes state, if they do."""
    longest = int(stage.attribute(f"{key}_max", 0))
    if not longest:
        return None
    p99 = float(stage.attribute(f"{key}_p99", 0.0))
    return Lengths.from_figures(float(stage.attribute(f"{key}_mean")), longest, p99 or None)


def _engine_flags(stage: Stage, served_rank: int, weight_distance: int) -> frozenset[str]:
    """Return the engine facts that change a generation's price: an adapter served, an engine that runs ahead."""
    if stage.attribute("quantized_collectives", False):
        return frozenset({"quantized_collectives"})
    if stage.op is not Op.GENERATE:
        return frozenset()
    flags = {"lora"} if served_rank else set()
    return frozenset(flags | ({"async"} if weight_distance > 1 else set()))
