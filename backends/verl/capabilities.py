"""What verl 0.9.1 with its FSDP2 engine can express: where stages may sit, which values fields take, what is tied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.verl.rules import RULES
from rpegc.errors import InputError
from rpegc.target import Capabilities, PlacementPattern, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph

VERSION = "0.9.1"
SYNC = "sync"
ONE_STEP_OFF = "one-step-off"

COLOCATED_ROLES = ("actor", "reference", "critic")

PLACEMENTS: tuple[PlacementPattern, ...] = (
    PlacementPattern(
        name="colocated",
        mode=SYNC,
        barrier=True,
        parents=(0, 0),
        homes={**dict.fromkeys((f"model:{role}" for role in (*COLOCATED_ROLES, "reward")), (1,)), "*": ()},
        refuses={"selected": "reward"},  # such a model judges after the groups were chosen
        source="verl/trainer/ppo/v1/trainer_base.py: one global pool for actor, rollout, reference and critic",
    ),
    PlacementPattern(
        name="reward-pool",
        mode=SYNC,
        barrier=True,
        parents=(0, 0, 0),
        homes={"model:reward": (2,), **dict.fromkeys((f"model:{role}" for role in COLOCATED_ROLES), (1,)), "*": ()},
        source="verl/trainer/ppo/v1/trainer_base.py: reward.reward_model.enable_resource_pool",
    ),
    PlacementPattern(
        name="teacher-pool",
        mode=SYNC,
        barrier=True,
        parents=(0, 0, 0),
        homes={"model:teacher": (2,), "model:actor": (1,), "*": ()},
        source="verl/trainer/ppo/v1/trainer_base.py: teacher_pool",
    ),
    PlacementPattern(
        name="one-step-off",
        mode=ONE_STEP_OFF,
        parents=(0, 0, 0),
        # An empty tuple is no home at all. In 0.9.1 this trainer breaks on a critic under fsdp2 (NotImplementedError,
        # and TrainingWorker has no init_model) and on a reward model (its pool is never created).
        homes={"op:generate": (2,), "model:critic": (), "model:reward": (), "model:teacher": (), "*": (1,)},
        weight_distance=(2, 2),
        forbids=("partial-rollout",),
        refuses={"selected": ""},  # filter_groups is V1's
        source="verl/experimental/one_step_off_policy/ray_trainer.py",
    ),
)
"""`homes` keys, the more specific wins: "stage:<name>", "model:<role>", "op:<op>", "*"."""

SHARDED_VALUES: dict[str, tuple[Any, ...]] = {
    "cp": (1,),
    "tp": (1,),
    "pp": (1,),
    "vpp": (1,),
    "ep": (1,),
    "etp": (1,),
    "zero": (2, 3),
    "micro_batch": (0,),
}

FIELD_VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    **{("train", field): values for field, values in SHARDED_VALUES.items()},
    **{("forward", field): values for field, values in SHARDED_VALUES.items()},
    ("train", "recompute"): ("none", "full"),
    ("forward", "recompute"): ("none",),
    ("forward", "offload_activations"): (False,),
    ("generate", "engine_dp"): (1,),
    ("generate", "pp"): (1,),
    ("generate", "ep"): (1,),
    ("generate", "precision"): ("bf16",),
}

STRUCTURES = frozenset(
    {
        "canonicalize",
        "share-base-reference",
        "reuse-rollout-logprobs",
        "bounded-asynchrony",
        "insert-transitions",
        "place",
        "parallelize",
    }
)
"""verl V1 always recomputes old log-probs unless bypassed, so `drop-old-logprobs` cannot be expressed."""

ENGINE_FIELDS = ("ulysses", "shard_size", "zero", "offload_parameters", "offload_optimizer")


def capabilities(version: str = VERSION, lora_rank: int = 0) -> Capabilities:
    """Return what the FSDP2 engine of this verl version can express; InputError for any other version.

    With adapters (`lora_rank` above 0) one-step-off is left out: its `update_weights` drops the adapter, so that only
    the frozen base weights would reach the rollout (verl/workers/engine_workers.py).
    """
    if version != VERSION:
        raise InputError(f"target version: the verl backend writes for {VERSION}, not {version!r}")
    return Capabilities(
        name="verl",
        version=version,
        engine_class="fsdp",
        placements=tuple(p for p in PLACEMENTS if not (lora_rank and p.mode == ONE_STEP_OFF)),
        field_values=FIELD_VALUES,
        rules=RULES,
        ties=(),
        structures=STRUCTURES,
    )


def ties_for(graph: Graph) -> tuple[Tie, ...]:
    """Return the stages of a graph that share one training engine, hence its layout.

    A forward pass of a trained model runs inside its training engine. The critic's passes also share one token
    budget; so do two passes of the actor (old log-probs, and the reference where it is the actor without adapter).
    """
    ties: list[Tie] = []
    for train in graph.stages:
        if train.op != "train":
            continue
        passes = tuple(s.name for s in graph.stages if s.op == "forward" and s.model == train.model)
        if not passes:
            continue
        ties.append(Tie((train.name, *passes), ENGINE_FIELDS, "verl/workers/engine_workers.py: one engine per model"))
        if train.model == "critic":
            # Both budgets of the critic's engine are set from critic.ppo_infer_max_token_len_per_gpu.
            ties.append(Tie((train.name, *passes), ("token_budget",), "verl/trainer/ppo/v1/trainer_base.py"))
        elif len(passes) > 1:
            ties.append(Tie(passes, ("token_budget",), "rollout.log_prob_max_token_len_per_gpu serves both"))
    return tuple(ties)
