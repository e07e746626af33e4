"""What OpenRLHF 0.11.2 can express, on the DeepSpeed that it pins: placements, values, rules, ties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from backends.layout_rules import BATCH_FITS, VLLM_SPLITS, divides, whole_nodes_of
from rpegc.errors import InputError
from rpegc.target import Capabilities, PlacementPattern, Rule, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph

VERSION = "0.11.2"
DEEPSPEED_VERSION = "0.19.6"
"""What OpenRLHF's metadata pins."""

HYBRID = "hybrid"
SEPARATE = "separate"
COMMAND = "openrlhf/cli/train_ppo_ray.py"
LAUNCHER = "openrlhf/trainer/ray/launcher.py"
ENGINE = "openrlhf/trainer/ray/vllm_engine.py"
DEEPSPEED = "openrlhf/utils/deepspeed/deepspeed_utils.py"
ENGINE_SEQUENCES, ENGINE_TOKENS = 256, 8192
"""`max_num_seqs` and `max_num_batched_tokens` of vLLM where nobody sets them (assumed; they depend on the GPU)."""

PLACEMENTS: tuple[PlacementPattern, ...] = (
    PlacementPattern(
        name="hybrid",
        mode=HYBRID,
        barrier=True,
        parents=(0, 0),
        homes={"*": (1,)},
        source=f"{COMMAND}: --train.colocate_all",
    ),
    PlacementPattern(
        name="separate",
        mode=SEPARATE,
        barrier=True,
        parents=(0, 0, 0),
        # A critic or a reward model would need GPUs of a third pool, with settings that all pools share.
        homes={"op:generate": (2,), "model:critic": (), "model:reward": (), "*": (1,)},
        source=f"{COMMAND}: --train.colocate_actor_ref",
    ),
)

ALONE: dict[str, tuple[Any, ...]] = dict.fromkeys(("cp", "ulysses", "tp", "pp", "vpp", "ep", "etp"), (1,))
SHARDED_VALUES: dict[str, tuple[Any, ...]] = {
    **ALONE,
    "zero": (1, 2, 3),
    "shard_size": (0,),
    "micro_batch": (0,),
    "offload_parameters": (False,),
    "offload_activations": (False,),
}
FIELD_VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    **{("train", field): values for field, values in SHARDED_VALUES.items()},
    **{("forward", field): values for field, values in SHARDED_VALUES.items()},
    ("train", "recompute"): ("none", "full"),
    ("forward", "recompute"): ("none",),
    **{("generate", field): (1,) for field in ("engine_dp", "pp", "ep")},
    ("generate", "precision"): ("bf16",),
    ("generate", "max_sequences"): (ENGINE_SEQUENCES,),
    ("generate", "batched_tokens"): (ENGINE_TOKENS,),
}
MENUS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("train", "zero"): (2, 3),
    ("forward", "zero"): (2, 3),
    ("generate", "max_sequences"): (ENGINE_SEQUENCES,),
    ("generate", "batched_tokens"): (ENGINE_TOKENS,),
}

WHOLE_NODES = whole_nodes_of(LAUNCHER)

SHARDED: tuple[Rule, ...] = (
    Rule(
        "ranks-are-data-parallel",
        LAUNCHER,
        "dp {dp} must be the {gpus} GPUs of the pool",
        lambda c: np.asarray(c["dp"] == c["gpus"]),
    ),
    Rule(
        "zero-shards-over-all-ranks",
        DEEPSPEED,
        "ZeRO shards over all {gpus} ranks: shard_size must be 0 or {gpus}, not {shard_size}",
        lambda c: np.asarray((c["shard_size"] == 0) | (c["shard_size"] == c["gpus"])),
    ),
    WHOLE_NODES,
)
TRAIN: tuple[Rule, ...] = (
    *SHARDED,
    Rule(
        "update-splits-over-ranks",
        "openrlhf/utils/deepspeed/deepspeed.py",
        "the {sequences_per_update} sequences of an update must split evenly over {dp} ranks",
        lambda c: divides(c["dp"], c["sequences_per_update"]),
    ),
)
GENERATE: tuple[Rule, ...] = (
    Rule(
        "engines-tile-the-pool",
        COMMAND,
        "engines {replicas} × tp {tp} must be the {gpus} GPUs of the pool",
        lambda c: np.asarray(c["replicas"] * c["tp"] == c["gpus"]),
    ),
    Rule(
        "tp-inside-a-node",
        ENGINE,
        "tp {tp} must divide the {gpus_per_node} GPUs that the pool takes of a node",
        lambda c: divides(c["tp"], c["gpus_per_node"]),
    ),
    Rule(
        "only-a-shared-engine-sleeps",
        COMMAND,
        "an engine sleeps exactly if it shares its GPUs (apart {apart}), not as offload {offload} says",
        lambda c: np.asarray((c["offload"] == 1) == (c["apart"] == 0)),
    ),
    *VLLM_SPLITS,
    BATCH_FITS,
    WHOLE_NODES,
)
RULES: dict[str, tuple[Rule, ...]] = {"train": TRAIN, "forward": SHARDED, "generate": GENERATE}

STRUCTURES = frozenset({"canonicalize", "insert-transitions", "place", "parallelize"})
"""Old log-probs are recomputed in every step, whatever the number of updates (experience_maker.py)."""


def capabilities(version: str = DEEPSPEED_VERSION) -> Capabilities:
    """Return what OpenRLHF on this DeepSpeed can express; InputError for any other version."""
    if version != DEEPSPEED_VERSION:
        raise InputError(
            f"target version: OpenRLHF {VERSION} runs on deepspeed {DEEPSPEED_VERSION}, which it pins, not {version!r}"
        )
    return Capabilities(
        name="deepspeed",
        version=version,
        engine_class="deepspeed-openrlhf",
        placements=PLACEMENTS,
        field_values=FIELD_VALUES,
        rules=RULES,
        ties=(),
        structures=STRUCTURES,
        menus=MENUS,
    )


def ties_for(graph: Graph) -> tuple[Tie, ...]:
    """Return the stages that one flag decides for: ZeRO and offload all, the token budgets of each kind of pass."""
    trains = tuple(stage.name for stage in graph.stages if stage.op == "train")
    passes = tuple(stage.name for stage in graph.stages if stage.op == "forward")
    ties = [Tie((*trains, *passes), ("zero", "offload_optimizer"), f"{COMMAND}: --ds.zero_stage, --ds.adam_offload")]
    if len(trains) > 1:
        source = f"{COMMAND}: --train.max_tokens_per_gpu, --actor.gradient_checkpointing_enable"
        ties.append(Tie(trains, ("token_budget", "recompute"), source))
    if len(passes) > 1:
        ties.append(Tie(passes, ("token_budget",), f"{COMMAND}: --rollout.max_tokens_per_gpu"))
    return tuple(tie for tie in ties if len(tie.stages) > 1)
