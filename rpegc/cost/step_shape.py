"""What every term of a training or forward price is made of: degrees, tokens and micro-batches, one element per row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.framework import FrameworkConstants
from rpegc.cost.framework_classes import framework_constants
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.ir.graph import Op
from rpegc.lengths import GROUP_CORRELATION, Lengths
from rpegc.target import WORDS, BoolArray, Columns, FloatArray, MeshClass

RECOMPUTE_SELECTIVE = WORDS["recompute"].index("selective")
RECOMPUTE_FULL = WORDS["recompute"].index("full")


@dataclass(frozen=True, slots=True)
class StepShape:
    """A stage's work spread over the layouts of a mesh; arrays have one element per layout.

    `sequence_ranks` = cp * ulysses GPUs share a sequence; `ranks` = dp * sequence_ranks hold the same slice of the
    model before sharding. `tokens` are those of one GPU in one micro-batch (mean lengths, padding removed),
    `micro_batches` and `updates` count per update and per RL step. `context` is the mean attended span of a token,
    `span` the mean length of the sequence that a token belongs to. `slowest` is the load of the slowest data-parallel
    rank over the mean. `stage_layers` are the layers of the slowest pipeline stage.
    """

    work: StageWork
    architecture: Architecture
    machine: Machine
    constants: FrameworkConstants
    mesh: MeshClass
    training: bool
    dp: FloatArray
    cp: FloatArray
    ulysses: FloatArray
    tp: FloatArray
    pp: FloatArray
    vpp: FloatArray
    ep: FloatArray
    etp: FloatArray
    zero: FloatArray
    shard: FloatArray
    sequence_parallel: BoolArray
    recompute_full: BoolArray
    recompute_selective: BoolArray
    offload_parameters: BoolArray
    offload_optimizer: BoolArray
    offload_activations: BoolArray
    micro_batch: FloatArray
    token_budget: FloatArray
    sequence_ranks: FloatArray
    ranks: FloatArray
    fully_sharded: BoolArray
    updates: int
    sequences_per_update: float
    micro_batches: FloatArray
    tokens: FloatArray
    slowest: FloatArray
    context: float
    span: float
    stage_layers: FloatArray

    @property
    def rows(self) -> int:
        """Number of layouts."""
        return len(self.dp)

    @property
    def streams_weights(self) -> bool:
        """Whether weights stay in host memory and are copied for each gather.

        verl's FSDP engines force this on models that are only run forward (`CPUOffload`, `CPUOffloadPolicy` in
        workers/engine/fsdp/transformer_impl.py of verl 0.9.1), whatever the offload flags say.
        """
        return self.work.framework == "verl" and self.work.engine_class == "fsdp" and not self.work.trained


def step_shape(
    work: StageWork,
    mesh: MeshClass,
    layouts: Columns,
    machine: Machine,
    constants: FrameworkConstants | None = None,
) -> StepShape:
    """Derive the arrays from a stage's work and its layouts (columns as in `rpegc.target.ShardedLayout`).

    `constants` stand in for those of the framework's class.
    """
    architecture = work.architecture
    if architecture is None:
        raise ValueError(f"stage {work.stage} has no model: nothing to train or to run forward")
    constants = constants or framework_constants(work.framework, work.engine_class)
    training = work.op is Op.TRAIN
    column = {name: np.asarray(values, dtype=np.float64) for name, values in layouts.items()}
    dp, pp = column["dp"], column["pp"]
    sequence_ranks = column["cp"] * column["ulysses"]
    mean, second_moment = _padded_moments(work) if constants.padded else _moments(work)
    updates = work.minibatches * work.epochs if training else work.passes
    sequences = work.sequences / (work.minibatches if training else work.passes)
    slowest = _slowest_rank(work, constants, dp, sequences, mean, second_moment)
    micro_batches = _micro_batches(column, slowest * sequences / dp * mean, np.ceil(sequences / dp))
    zero, shard = column["zero"], np.maximum(column["shard_size"], 1.0)
    recompute = column["recompute"]
    return StepShape(
        work=work,
        architecture=architecture,
        machine=machine,
        constants=constants,
        mesh=mesh,
        training=training,
        dp=dp,
        cp=column["cp"],
        ulysses=column["ulysses"],
        tp=column["tp"],
        pp=pp,
        vpp=column["vpp"],
        ep=column["ep"],
        etp=column["etp"],
        zero=zero,
        shard=shard,
        sequence_parallel=column["sequence_parallel"] > 0,
        recompute_full=(recompute == RECOMPUTE_FULL) & training,
        recompute_selective=(recompute == RECOMPUTE_SELECTIVE) & training,
        offload_parameters=column["offload_parameters"] > 0,
        offload_optimizer=column["offload_optimizer"] > 0,
        offload_activations=(column["offload_activations"] > 0) & training,
        micro_batch=column["micro_batch"],
        token_budget=column["token_budget"],
        sequence_ranks=sequence_ranks,
        ranks=dp * sequence_ranks,
        fully_sharded=zero >= constants.full_shard_from,
        updates=updates,
        sequences_per_update=sequences,
        micro_batches=micro_batches,
        tokens=sequences / dp * mean / sequence_ranks / micro_batches,
        slowest=slowest,
        context=second_moment / (2.0 * mean),
        span=second_moment / mean,
        stage_layers=_stage_layers(architecture.layers, pp),
    )


def _moments(work: StageWork) -> tuple[float, float]:
    """Return E[s] and E[s^2] of prompt plus response tokens, taken as independent."""
    prompt, response = work.prompt_tokens, work.response_tokens
    mean = prompt.mean + response.mean
    return mean, prompt.second_moment + 2.0 * prompt.mean * response.mean + response.second_moment


def _padded_moments(work: StageWork) -> tuple[float, float]:
    """Return length and squared length where a step's sequences are padded: the longest prompt and response count.

    A rank pads to the longest that it holds; the others wait for the rank with the longest of all.
    """
    responses = _longest_response(work.response_tokens, float(work.sequences), work.samples_per_prompt)
    longest = _longest_response(work.prompt_tokens, float(work.prompts), 1) + responses
    return longest, longest * longest


def _slowest_rank(
    work: StageWork,
    constants: FrameworkConstants,
    dp: FloatArray,
    sequences: float,
    mean: float,
    second_moment: float,
) -> FloatArray:
    """Return the load of the slowest data-parallel rank over the mean load.

    A rank has n = ceil(sequences / dp) sequences; its sum deviates by deviation * sqrt(n), the slowest of dp ranks by
    the expected maximum of dp normal variables times that, of which balanced dealing leaves a share. No rank can be
    quicker than the longest sequence of the update, which one of them holds whole.
    """
    per_rank = np.ceil(sequences / dp)
    deviation = np.sqrt(max(second_moment - mean * mean, 0.0)) / mean
    degrees, inverse = np.unique(dp, return_inverse=True)
    expected_maximum = np.array([_normal_maximum(int(degree)) for degree in degrees])[inverse]
    spread = constants.imbalance.value * deviation * expected_maximum / np.sqrt(per_rank)
    group = work.samples_per_prompt if sequences >= work.samples_per_prompt else 1
    longest = work.prompt_tokens.mean + _longest_response(work.response_tokens, max(sequences, 1.0), group)
    rounding = per_rank * dp / sequences
    return np.asarray(np.maximum(rounding * (1.0 + spread), longest * dp / (sequences * mean)), dtype=np.float64)


@lru_cache(maxsize=256)
def _longest_response(lengths: Lengths, count: float, group: int) -> float:
    """Return the expected longest of `count` responses; kept, since every mesh class asks for the same one."""
    return lengths.expected_maximum(count, group, GROUP_CORRELATION)


def _normal_maximum(count: int) -> float:
    """Return the expected maximum of `count` standard normal variables (Blom 1958, within 2 % for all counts)."""
    return 0.0 if count <= 1 else NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _micro_batches(column: dict[str, FloatArray], slowest_tokens: FloatArray, sequences: FloatArray) -> FloatArray:
    """Return micro-batches per update: packed into the token budget, or by count of sequences.

    All ranks take as many as the slowest, and never more than there are sequences (verl, utils/seqlen_balancing.py).
    An interleaved pipeline takes a multiple of its stages (Megatron-core, schedules.py).
    """
    budget = column["token_budget"] * column["ulysses"] * column["cp"]
    packed = np.ceil(slowest_tokens / np.where(budget > 0, budget, np.inf))
    counted = np.ceil(sequences / np.maximum(column["micro_batch"], 1.0))
    wanted = np.where(budget > 0, packed, counted)
    stages = np.where(column["vpp"] > 1, column["pp"], 1.0)
    return np.asarray(np.clip(np.ceil(wanted / stages) * stages, 1.0, sequences), dtype=np.float64)


def _stage_layers(layers: int, pp: FloatArray) -> FloatArray:
    """Return the layers of the slowest pipeline stage; embedding and loss count as one each if pp does not divide."""
    return np.asarray(np.where(layers % pp == 0, layers / pp, np.ceil((layers + 2) / pp)), dtype=np.float64)
