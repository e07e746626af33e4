"""What TRL 1.16.0 on DeepSpeed 0.19.8 can express: where stages may sit, which values fields take, what is tied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.deepspeed.rules import COLOCATED_BATCHED_TOKENS, RULES
from rpegc.errors import InputError
from rpegc.target import Capabilities, PlacementPattern, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph

VERSION = "0.19.8"
TRL_VERSION = "1.16.0"
COLOCATE = "colocate"
SERVER = "server"

PLACEMENTS: tuple[PlacementPattern, ...] = (
    PlacementPattern(
        name="colocated",
        mode=COLOCATE,
        barrier=True,
        parents=(0, 0),
        # An empty tuple is no home at all: TRL's GRPO has no critic, and judges with a reward model all samples of a
        # rank in one batch (_calculate_rewards), which no layout of ours describes.
        homes={"model:critic": (), "model:reward": (), "*": (1,)},
        source="trl/generation/vllm_generation.py: vllm_mode colocate",
    ),
    PlacementPattern(
        name="server",
        mode=SERVER,
        barrier=True,
        parents=(0, 0, 0),
        homes={"op:generate": (2,), "model:critic": (), "model:reward": (), "*": (1,)},
        source="trl/generation/vllm_client.py: vllm_mode server",
    ),
)
"""`homes` keys, the more specific wins: "stage:<name>", "model:<role>", "op:<op>", "*"."""

ALONE: dict[str, tuple[Any, ...]] = {"cp": (1,), "ulysses": (1,), "tp": (1,), "pp": (1,), "vpp": (1,)}
SHARDED_VALUES: dict[str, tuple[Any, ...]] = {
    **ALONE,
    "ep": (1,),
    "etp": (1,),
    "zero": (0, 1, 2, 3),
    "token_budget": (0,),
    "offload_activations": (False,),
}

FIELD_VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    **{("train", field): values for field, values in SHARDED_VALUES.items()},
    **{("forward", field): values for field, values in SHARDED_VALUES.items()},
    ("train", "recompute"): ("none", "full"),
    ("forward", "recompute"): ("none",),
    ("generate", "engine_dp"): (1,),
    ("generate", "pp"): (1,),
    ("generate", "ep"): (1,),
    ("generate", "precision"): ("bf16",),
}

SEQUENCES = (1, 2, 4, 8, 16, 32)
ENGINE_SEQUENCES = tuple(sorted(n * 2**k for n in (2, 3) for k in range(12) if n * 2**k <= COLOCATED_BATCHED_TOKENS))
SHARDED_MENUS: dict[str, tuple[Any, ...]] = {
    "micro_batch": SEQUENCES,  # TRL counts sequences and packs no tokens
    "token_budget": (0,),
    "zero": (0, 1, 2, 3),
    "shard_size": (0,),
    "offload_parameters": (False,),  # streamed for every use: `fix` turns it on, no price compares it
}
MENUS: dict[tuple[str, str], tuple[Any, ...]] = {
    **{("train", field): values for field, values in SHARDED_MENUS.items()},
    **{("forward", field): values for field, values in SHARDED_MENUS.items()},
    ("generate", "max_sequences"): (1, *ENGINE_SEQUENCES),
    ("generate", "batched_tokens"): (COLOCATED_BATCHED_TOKENS, 8192, 16384),
}
"""What is tried in place of the search space's lists, where the trainer batches in another form or decides itself."""

STRUCTURES = frozenset(
    {
        "canonicalize",
        "drop-old-logprobs",
        "share-base-reference",
        "insert-transitions",
        "place",
        "parallelize",
    }
)
"""With one update a step TRL takes the old log-probs from that update's own forward pass, as `drop-old-logprobs`."""

ENGINE_FIELDS = ("zero", "shard_size", "offload_parameters", "offload_optimizer", "micro_batch")


def capabilities(version: str = VERSION) -> Capabilities:
    """Return what the trainer of this DeepSpeed version can express; InputError for any other version."""
    if version != VERSION:
        raise InputError(f"target version: the deepspeed backend writes for {VERSION}, not {version!r}")
    return Capabilities(
        name="deepspeed",
        version=version,
        engine_class="deepspeed-trl",
        placements=PLACEMENTS,
        field_values=FIELD_VALUES,
        rules=RULES,
        ties=(),
        structures=STRUCTURES,
        menus=MENUS,
    )


def ties_for(graph: Graph) -> tuple[Tie, ...]:
    """Return the stages of a graph that share one engine or its settings.

    All forward passes take micro-batches of training's size; the actor's run in its engine, and the reference's weights
    are sharded exactly where the actor's are (`prepare_deepspeed` of trl/models/utils.py).
    """
    for train in graph.stages:
        if train.op == "train":
            passes = tuple(stage.name for stage in graph.stages if stage.op == "forward")
            if passes:
                return (Tie((train.name, *passes), ENGINE_FIELDS, "trl/models/utils.py: prepare_deepspeed"),)
    return ()
