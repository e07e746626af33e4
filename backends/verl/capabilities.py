"""What verl 0.9.1 can express with each training engine: where stages may sit, values of fields, what is tied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.verl import rules_megatron
from backends.verl.rules import RULES
from rpegc.errors import InputError
from rpegc.target import Capabilities, PlacementPattern, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph

VERSION = "0.9.1"
SYNC = "sync"
COLOCATE_ASYNC = "colocate-async"
SEPARATE_ASYNC = "separate-async"
ONE_STEP_OFF = "one-step-off"
APART = (ONE_STEP_OFF, SEPARATE_ASYNC)
"""Modes in which the rollout has GPUs of its own."""
V1_ASYNCHRONOUS = (COLOCATE_ASYNC, SEPARATE_ASYNC)
"""Modes that are trainers of V1, with its replay buffer, which bounds the age of samples."""
MODES = (SYNC, COLOCATE_ASYNC, SEPARATE_ASYNC, ONE_STEP_OFF)
"""Launch modes: verl's V1 trainers, and the experimental one-step-off. Its fully-async trainer bounds how many samples
are stale, not by how much (`staleness_threshold`): no staleness bound holds there, so it is never chosen."""

MOST_STALENESS = 8
"""Weight versions up to which separate-async is planned (assumed: more only costs memory)."""
COMPLETION_ORDER, REUSE_LOGPROBS, PARTIAL = "minibatches-by-completion", "reuse-rollout-logprobs", "partial-rollout"
"""Rewrites that modes imply or cannot express."""

FSDP, MEGATRON = "fsdp", "megatron"
ENGINES = (FSDP, MEGATRON)
"""The training engines that a plan may choose: FSDP2 (`model_engine=dp`) and Megatron (`model_engine=megatron`)."""

COLOCATED_ROLES = ("actor", "reference", "critic")

SELECTS = {"selected": ""}
"""Of graphs that replace groups without a signal: the asynchronous trainers do so while they train, which is not
priced."""

PLACEMENTS: tuple[PlacementPattern, ...] = (
    PlacementPattern(
        name="colocated",
        mode=SYNC,
        barrier=True,
        parents=(0, 0),
        homes={**dict.fromkeys((f"model:{role}" for role in (*COLOCATED_ROLES, "reward")), (1,)), "*": ()},
        forbids=(PARTIAL,),
        refuses={"selected": "reward"},  # such a model judges after the groups were chosen
        source="verl/trainer/ppo/v1/trainer_base.py: one global pool for actor, rollout, reference and critic",
    ),
    PlacementPattern(
        name="reward-pool",
        mode=SYNC,
        barrier=True,
        parents=(0, 0, 0),
        homes={"model:reward": (2,), **dict.fromkeys((f"model:{role}" for role in COLOCATED_ROLES), (1,)), "*": ()},
        forbids=(PARTIAL,),
        source="verl/trainer/ppo/v1/trainer_base.py: reward.reward_model.enable_resource_pool",
    ),
    PlacementPattern(
        name="teacher-pool",
        mode=SYNC,
        barrier=True,
        parents=(0, 0, 0),
        homes={"model:teacher": (2,), "model:actor": (1,), "*": ()},
        forbids=(PARTIAL,),
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
        forbids=(PARTIAL, COMPLETION_ORDER),
        refuses={"selected": ""},  # filter_groups is V1's
        source="verl/experimental/one_step_off_policy/ray_trainer.py",
    ),
    PlacementPattern(
        name="colocate-async",
        mode=COLOCATE_ASYNC,
        barrier=True,
        parents=(0, 0),
        homes={**dict.fromkeys((f"model:{role}" for role in (*COLOCATED_ROLES, "reward")), (1,)), "*": ()},
        # Settings that hold a bound of one version exactly: one batch ahead, `wait`, threshold 2 (see `settings.py`).
        # Then a step takes nothing until all prompts of the step before are done, and trains on just those.
        requires=(PARTIAL,),
        refuses=SELECTS,
        source="verl/trainer/ppo/v1/trainer_colocate_async.py",
    ),
    *(
        PlacementPattern(
            name=name,
            mode=SEPARATE_ASYNC,
            parents=(0,) * (3 + len(reward)),
            homes={
                "op:generate": (2,),
                "model:reward": reward,
                **dict.fromkeys((f"model:{role}" for role in COLOCATED_ROLES), (1,)),
                "*": (),
            },
            weight_distance=(2, 1 + MOST_STALENESS),
            # Recomputed old log-probs would be those of a copy of the weights that each update restores from host
            # memory (save_model_to_cpu), which is not priced: so the engine's stand in for them.
            requires=(COMPLETION_ORDER, REUSE_LOGPROBS),
            forbids=(PARTIAL,),
            refuses=SELECTS,
            source="verl/trainer/ppo/v1/trainer_separate_async.py",
        )
        for name, reward in (("separate-async", ()), ("separate-async-reward-pool", (3,)))
    ),
)
"""`homes` keys, the more specific wins: "stage:<name>", "model:<role>", "op:<op>", "*"."""

FSDP_VALUES: dict[str, tuple[Any, ...]] = {
    "cp": (1,),
    "tp": (1,),
    "pp": (1,),
    "vpp": (1,),
    "ep": (1,),
    "etp": (1,),
    "zero": (2, 3),
    "micro_batch": (0,),
}

MEGATRON_VALUES: dict[str, tuple[Any, ...]] = {
    "ulysses": (1,),
    "zero": (1,),  # use_distributed_optimizer
    "shard_size": (0,),
    "micro_batch": (0,),
    "offload_activations": (False,),
}

SERVED = "served"
"""What this backend calls the stages of a reward model or teacher: verl serves them with vLLM beside either engine."""
KINDS = {("forward", role): SERVED for role in ("reward", "teacher")}
KIND_CLASSES = {SERVED: FSDP, "generate": FSDP}
"""The engines that serve are the same beside either training engine: they have one price, that of the first."""

COMMON_VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    **{(SERVED, field): values for field, values in FSDP_VALUES.items()},
    **{(op, "recompute"): ("none",) for op in ("forward", SERVED)},
    **{(op, "offload_activations"): (False,) for op in ("forward", SERVED)},
    ("generate", "engine_dp"): (1,),
    ("generate", "pp"): (1,),
    ("generate", "ep"): (1,),
    ("generate", "precision"): ("bf16",),
}

FIELD_VALUES: dict[str, dict[tuple[str, str], tuple[Any, ...]]] = {
    FSDP: {
        **{(op, field): values for op in ("train", "forward") for field, values in FSDP_VALUES.items()},
        ("train", "recompute"): ("none", "full"),
        **COMMON_VALUES,
    },
    MEGATRON: {
        **{(op, field): values for op in ("train", "forward") for field, values in MEGATRON_VALUES.items()},
        ("train", "recompute"): ("none", "selective", "full"),
        **COMMON_VALUES,
    },
}

ENGINE_RULES = {
    FSDP: RULES | {SERVED: RULES["forward"]},
    MEGATRON: {
        "train": rules_megatron.TRAIN,
        "forward": rules_megatron.FORWARD,
        SERVED: RULES["forward"],
        "generate": RULES["generate"],
    },
}
"""Rules by engine and kind of stage."""

STRUCTURES = frozenset(
    {
        "canonicalize",
        "share-base-reference",
        COMPLETION_ORDER,
        PARTIAL,
        REUSE_LOGPROBS,
        "bounded-asynchrony",
        "insert-transitions",
        "place",
        "parallelize",
    }
)
"""verl V1 always recomputes old log-probs unless bypassed, so `drop-old-logprobs` cannot be expressed."""

ENGINE_FIELDS = ("ulysses", "shard_size", "zero", "offload_parameters", "offload_optimizer")
MEGATRON_SIZES = ("cp", "tp", "pp", "vpp", "ep", "etp")
"""Sizes of Megatron-core's process groups, which one worker process has once for all of its models."""


def capabilities(
    version: str = VERSION, lora_rank: int = 0, engine: str = FSDP, before_v1: bool = False
) -> Capabilities:
    """Return what an engine of this verl version can express; InputError for any other version.

    With adapters (`lora_rank` above 0) modes with a rollout apart are left out: `update_weights` drops the adapter
    there, so that only the frozen base weights would reach the rollout (verl/workers/engine_workers.py). Where only
    the trainer before V1 will do (`before_v1`), V1's asynchronous trainers are left out: it would run in step instead.
    """
    if version != VERSION:
        raise InputError(f"target version: the verl backend writes for {VERSION}, not {version!r}")
    left_out = {*(APART if lora_rank else ()), *(V1_ASYNCHRONOUS if before_v1 else ())}
    return Capabilities(
        name="verl",
        version=version,
        engine_class=engine,
        placements=tuple(p for p in PLACEMENTS if p.mode not in left_out),
        field_values=FIELD_VALUES[engine],
        rules=ENGINE_RULES[engine],
        ties=(),
        structures=STRUCTURES,
        engine=engine,
        kinds=KINDS,
        kind_classes=KIND_CLASSES,
    )


def ties_for(graph: Graph) -> tuple[Tie, ...]:
    """Return the stages of a graph that share one training engine, hence its layout.

    A forward pass of a trained model runs inside its training engine. The critic's passes also share one token
    budget; so do two passes of the actor (old log-probs, and the reference where it is the actor without adapter).
    Under Megatron the process groups are set up once a process (`mpu.is_initialized()`): all models of the pool have
    the sizes of the one that comes first, and the reference reads the actor's offload too unless told otherwise.
    """
    ties: list[Tie] = []
    if graph.engine == MEGATRON:
        models = tuple(
            s.name for s in graph.stages if s.op in ("train", "forward") and KINDS.get((s.op.value, s.model)) != SERVED
        )
        if len(models) > 1:
            source = f"{rules_megatron.MEGATRON_ENGINE}: _init_device_mesh"
            ties.append(Tie(models, MEGATRON_SIZES, source))
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
