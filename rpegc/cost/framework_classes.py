"""The known classes of framework and their constants; every class starts from plain physics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from rpegc.cost import rl_passes
from rpegc.cost.constants import KERNEL_LAUNCH_S, MEMORY_ROWS, PRETRAINING, RECURRENCE_SHARE, RL_LOGS, assumed, fitted
from rpegc.cost.framework import FrameworkConstants
from rpegc.cost.roofline import FP8_SPEEDUP_HOPPER
from rpegc.hardware import Figure
from rpegc.units import MILLISECOND

_SCORES = "BF16 scores and one-byte masks of unfused attention with a fused softmax (arXiv 2205.05198, section 4)"
FUSED = Figure(0.0, "spec", "fused attention keeps the scores on the chip (FlashAttention, arXiv 2205.14135)")

PHYSICS = FrameworkConstants(
    name="physics",
    train_factor=assumed(1.0, "rows of this class define the physics"),
    forward_factor=assumed(1.0, "rows of this class define the physics"),
    moe_factor=assumed(1.0, "rows of this class define the physics"),
    micro_batch_s=assumed(0.0, "covered by the other constants of this class"),
    micro_batch_lora_s=assumed(0.0, "covered by the other constants of this class"),
    onload_s=assumed(0.0, "no row of this class offloads parameters"),
    platforms=MappingProxyType({}),
    elementwise=assumed(1.0, "fused kernels"),
    logit_bytes=assumed(8.0, "FP32 logits written and read"),
    lora_traffic=fitted(0.58),
    attention=MappingProxyType({}),
    tensor_exposed=fitted(0.36),
    tensor_backward=assumed(1.0, "no overlap with weight gradients"),
    context_exposed=assumed(0.3, "ring exchange of keys and values behind attention"),
    ulysses_exposed=assumed(1.0, "all-to-all of DeepSpeed-Ulysses (2309.14509) sits on the critical path"),
    expert_exposed=fitted(0.27),
    expert_exposed_across_nodes=fitted(0.68),
    point_to_point_exposed=fitted(0.17),
    gather_exposed=fitted(0.16),
    reduce_exposed=fitted(0.16),
    data_exposed=fitted(0.38),
    gradient_bytes=Figure(4.0, "spec", "gradients are reduced in FP32"),
    moe_layer_s=fitted(0.84 * MILLISECOND),
    permute_bytes=fitted(12.0),
    expert_launch_s=assumed(0.0, "all experts in one grouped kernel"),
    host_factor=assumed(1.0, "launches without Python wrappers around every module"),
    fp8_gemm=FP8_SPEEDUP_HOPPER,
    score_bytes=(FUSED, FUSED),
    recurrence_share=RECURRENCE_SHARE,
    selective_recompute=(("attention", 1.0),),
    update_s=assumed(0.035, "launch, clipping, metrics and data loading per optimizer update"),
    imbalance=assumed(1.0, "sequences are dealt out without regard to their lengths"),
    full_shard_from=3,
    known_on=(),
    logit_memory_train=Figure(10.0, "fitted", MEMORY_ROWS),
    logit_memory_forward=assumed(6.0, "BF16 logits and one FP32 copy"),
    token_memory=Figure(10.6, "fitted", MEMORY_ROWS),
    mlp_memory=Figure(11.5, "fitted", MEMORY_ROWS),
    route_memory=Figure(22.7, "fitted", MEMORY_ROWS),
    selective_memory=assumed(1.0, "fused attention keeps no scores: recomputing it frees next to nothing"),
    master_bytes=Figure(4.0, "spec", "FP32 weights are the sharded parameters themselves (FSDP2)"),
)

_BEHIND_WEIGHT_GRADIENTS = assumed(
    0.5, "collectives of column-parallel inputs run behind the weight gradient, two of four (arXiv 2205.05198)"
)
_MEGATRON = replace(
    PHYSICS,
    name="megatron",
    tensor_exposed=fitted(0.713),
    tensor_backward=_BEHIND_WEIGHT_GRADIENTS,
    data_exposed=fitted(0.457),
    recurrence_share=fitted(0.0177),
    permute_bytes=fitted(8.21),
    fp8_gemm=fitted(1.73),
    gradient_bytes=Figure(2.0, "spec", "performance recipes of NVIDIA NeMo and Megatron-Bridge reduce BF16 gradients"),
    moe_layer_s=fitted(0.164 * MILLISECOND, PRETRAINING + "; router captured in CUDA graphs"),
    attention=MappingProxyType({"H100": fitted(6.28e14), "H200": fitted(5.6e14)}),  # cuDNN of 2025, as the kernel table
    known_on=("H100", "H200", "GH200", "A100", "B200", "B300", "GB200", "GB300"),
)
_MEGATRON_EAGER = replace(
    _MEGATRON,
    name="megatron eager router",
    expert_launch_s=KERNEL_LAUNCH_S,  # Transformer Engine loops over the experts
    moe_layer_s=fitted(1.31 * MILLISECOND),
    permute_bytes=fitted(10.4),
)
_NEMO = replace(_MEGATRON_EAGER, name="nemo 24", attention=MappingProxyType({}))  # cuDNN of 2024
_MEGATRON_2021 = replace(
    PHYSICS,
    name="megatron-lm 2021",
    data_exposed=assumed(1.0, "gradients are reduced after the last backward pass; overlap came in 2023"),
    gradient_bytes=Figure(2.0, "spec", "gradients in FP16 unless accumulate-allreduce-grads-in-fp32 is set"),
    elementwise=fitted(1.17),
    tensor_exposed=fitted(0.894),
    score_bytes=(
        Figure(
            11.0, "spec", _SCORES + ": written, read and written by the softmax, by the dropout with its mask, read"
        ),
        Figure(19.0, "spec", _SCORES + ": dropout and softmax backwards, two products read what they leave"),
    ),
    known_on=("A100",),
)
_MEGATRON_2022 = replace(_MEGATRON_2021, name="megatron-lm", tensor_backward=_BEHIND_WEIGHT_GRADIENTS)
_MPT = replace(
    PHYSICS,
    name="llm-foundry",
    gather_exposed=fitted(0.524),
    reduce_exposed=fitted(0.524),
    fp8_gemm=fitted(1.71),
    attention=MappingProxyType({"H100": fitted(2.13e14)}),  # FlashAttention of 2023, written for A100
    full_shard_from=2,
    known_on=("A100", "H100"),
)
_TORCHTITAN = replace(
    PHYSICS,
    name="torchtitan",
    tensor_exposed=fitted(0.869),
    gather_exposed=fitted(0.562),
    reduce_exposed=fitted(0.562),
    fp8_gemm=fitted(1.93),
    attention=MappingProxyType(
        {
            "H100": fitted(2.18e14, "FlashAttention-2 through SDPA on the 500 W part, fitted to torchtitan rows"),
            "H200": Figure(3.18e14, "measured", "FlashAttention-2 (Azure AI-benchmarking-guide @3371c0c3)"),
        }
    ),
    logit_memory_train=Figure(13.7, "fitted", MEMORY_ROWS),
    selective_memory=Figure(0.38, "fitted", MEMORY_ROWS),
    selective_recompute=(("elementwise", 1.0), ("gemm", 0.5)),  # every second matrix product is kept
    full_shard_from=2,
    known_on=("H100", "H200"),
)
_TORCHTITAN_2025 = replace(
    _TORCHTITAN,
    name="torchtitan 2025",
    logit_memory_train=fitted(5.7, MEMORY_ROWS + "; the compiled loss keeps BF16 logits and one FP32 copy"),
)
_PRIME = replace(
    PHYSICS,
    name="prime-rl",
    elementwise=fitted(8.66),
    gather_exposed=fitted(0.332),
    reduce_exposed=fitted(0.332),
    logit_bytes=assumed(28.0, "FP32 log-probabilities and entropy"),
    lora_traffic=fitted(2.45),
    micro_batch_s=fitted(1.23 * MILLISECOND),
    micro_batch_lora_s=fitted(1.23 * MILLISECOND),
    moe_layer_s=fitted(3.78 * MILLISECOND),
    attention=MappingProxyType(
        {
            "H100": fitted(6.47e14),  # FlashAttention-3
            "H200": fitted(6.61e14),
            "B200": Figure(3.34e14, "measured", "FlashAttention-2 (Azure AI-benchmarking-guide @3371c0c3)"),
        }
    ),
    logit_memory_train=Figure(0.0, "fitted", MEMORY_ROWS + ": the RL loss runs in chunks"),
    logit_memory_forward=Figure(0.0, "fitted", MEMORY_ROWS + ": the RL loss runs in chunks"),
    full_shard_from=2,
    known_on=("H100", "H200"),
)
_PRIME_SFT = replace(
    _PRIME,
    name="prime-rl sft",
    logit_bytes=assumed(8.0, "cross entropy"),
    logit_memory_train=Figure(15.0, "fitted", MEMORY_ROWS),
    logit_memory_forward=Figure(15.0, "fitted", MEMORY_ROWS),
)

_RL = replace(
    PHYSICS,
    name="unknown",
    train_factor=rl_passes.UNKNOWN_TRAINING,
    forward_factor=rl_passes.UNKNOWN_FORWARD,
    moe_factor=rl_passes.MIXTURE,
    onload_s=rl_passes.ONLOAD_S,
    platforms=rl_passes.PLATFORMS,
    logit_bytes=assumed(28.0, "FP32 log-probabilities and entropy"),
    lora_traffic=assumed(0.0, "inside the time per micro-batch of adapter runs"),
    attention=MappingProxyType(
        {"GH200": assumed(4.0e14, "as on H100: the figure of GH200 comes from five rows of another framework")}
    ),
    logit_memory_train=assumed(
        9.0, "BF16 logits, FP32 softmax and the token-wise copy of the entropy (4 + 2 + 1), plus the BF16 gradient"
    ),
    logit_memory_forward=assumed(7.0, "BF16 logits, FP32 softmax and the token-wise copy of the entropy (4 + 2 + 1)"),
    imbalance=assumed(1.0, "sequences are dealt out without regard to their lengths"),
)
_RL_FSDP = replace(
    _RL,
    name="unknown fsdp",
    micro_batch_s=rl_passes.MICRO_BATCH_FSDP_S,
    micro_batch_lora_s=rl_passes.MICRO_BATCH_LORA_S,
    elementwise=assumed(3.5, "modules of Hugging Face transformers: norms and rotary embedding unfused, in FP32"),
    tensor_exposed=fitted(0.70),
    gather_exposed=fitted(0.70, RL_LOGS + "; verl leaves forward_prefetch off"),
    host_factor=assumed(1.5, "Python wrappers of FSDP around every module"),
    full_shard_from=2,
)
_RL_MEGATRON = replace(
    _RL,
    name="unknown megatron",
    tensor_backward=_BEHIND_WEIGHT_GRADIENTS,
    micro_batch_s=rl_passes.MICRO_BATCH_MEGATRON_S,
    micro_batch_lora_s=rl_passes.MICRO_BATCH_MEGATRON_S,
    logit_memory_train=Figure(10.0, "fitted", MEMORY_ROWS),
)
_IN_PLACE = (
    "BF16 logits, overwritten by their gradient, and the gradient before the division by the temperature: without an "
    "entropy bonus, verl's default, the loss works in place (verl/workers/actor/dp_actor.py, inplace_backward)"
)
_COMPILED = (
    "BF16 logits; log-probabilities and the compiled entropy keep nothing of their size, the odd byte is the buffer in "
    "which the next micro-batch begins (verl/workers/actor/dp_actor.py, compute_entropy_from_logits)"
)
_VERL_FSDP = replace(
    _RL_FSDP,
    logit_memory_train=Figure(4.0, "spec", _IN_PLACE),
    logit_memory_forward=Figure(3.0, "assumed", _COMPILED),
)
_DEEPSPEED = replace(
    _RL_FSDP,
    name="deepspeed",
    train_factor=fitted(1.85, "fitted to the OpenRLHF table of 13B and 70B PPO on A800 (arXiv 2405.11143)"),
    full_shard_from=3,
    master_bytes=Figure(
        6.0, "spec", "BF16 weights and an FP32 master copy, both sharded by ZeRO 3 (arXiv 1910.02054, section 3.1)"
    ),
    host_update=True,
)
_BALANCED = assumed(0.1, "verl deals sequences out with the Karmarkar-Karp method (trainer.balance_batch)")

_KNOWN_ON = {"verl": ("H100", "H800", "H20", "L20"), "nemo-rl": ("H100", "GB200")}

CLASSES: Mapping[tuple[str, str], FrameworkConstants] = MappingProxyType(
    {
        **{
            (framework, engine): replace(
                _RL_MEGATRON if engine == "megatron" else _VERL_FSDP if framework == "verl" else _RL_FSDP,
                name=f"{framework} {engine}",
                train_factor=factor,
                forward_factor=rl_passes.FORWARD_FACTORS[framework, engine],
                imbalance=_BALANCED if framework == "verl" else _RL.imbalance,
                known_on=_KNOWN_ON.get(framework, ()),
            )
            for (framework, engine), factor in rl_passes.TRAINING_FACTORS.items()
        },
        ("deepspeed", "fsdp"): replace(_DEEPSPEED, master_bytes=_RL_FSDP.master_bytes, host_update=False),
        ("deepspeed", "deepspeed-openrlhf"): replace(_DEEPSPEED, name="deepspeed openrlhf"),
        # Trainers of TRL pad each rank's samples of a step to the longest of them (trl/trainer/grpo_trainer.py).
        ("deepspeed", "deepspeed-trl"): replace(_DEEPSPEED, name="deepspeed trl", padded=True),
        ("megatron-bridge", "megatron"): _MEGATRON,
        ("megatron-bridge eager", "megatron"): _MEGATRON_EAGER,
        ("nemo", "megatron"): _NEMO,
        ("megatron-lm", "megatron"): _MEGATRON_2022,
        ("megatron-lm 2021", "megatron"): _MEGATRON_2021,
        ("llm-foundry", "fsdp"): _MPT,
        ("torchtitan", "fsdp"): _TORCHTITAN,
        ("torchtitan 2025", "fsdp"): _TORCHTITAN_2025,
        ("prime-rl", "fsdp"): _PRIME,
        ("prime-rl sft", "fsdp"): _PRIME_SFT,
    }
)


def framework_constants(framework: str, engine_class: str) -> FrameworkConstants:
    """Return the constants of a framework and engine class, or those of an unknown one of the same engine class."""
    unknown = _RL_MEGATRON if engine_class == "megatron" else _RL_FSDP
    return CLASSES.get((framework, engine_class), unknown)
