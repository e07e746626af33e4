"""Constants that hold for every framework; every figure says where it comes from."""

from __future__ import annotations

from rpegc.hardware import Figure
from rpegc.units import GB, GIB, MICROSECOND

PRETRAINING = (
    "fitted to published rows: MosaicML llm-foundry benchmarking README, NVIDIA Megatron-Bridge and NeMo performance "
    "summaries, torchtitan benchmarks, prime-rl benchmarks, arXiv 2205.05198 Table 5"
)
RL_LOGS = (
    "fitted to published RL step logs: verl-data and verl documentation (7B to 72B on H100, H800, H20), "
    "NeMo-RL v0.4 to v0.6 performance summary"
)
MEMORY_ROWS = (
    "fitted to printed peaks: prime-rl benchmarks/baselines, torchtitan benchmarks, Megatron-Bridge skill cards"
)


def fitted(value: float, source: str = PRETRAINING) -> Figure:
    """Return a figure fitted to measurements (by default the published training rows)."""
    return Figure(value, "fitted", source)


def assumed(value: float, source: str) -> Figure:
    """Return a figure that is our assumption, with its reason."""
    return Figure(value, "assumed", source)


# Physics that holds for every framework.
ATTENTION_BACKWARD = assumed(
    2.5 / 0.75,
    "five matrix products against two of the forward pass, at 0.75 of its rate (FlashAttention-2, 2307.08691)",
)
ELEMENTWISE_BACKWARD = assumed(1.6, "backward reads the saved input besides the gradient")
OPTIMIZER_BYTES = assumed(30.0, "AdamW reads weight, gradient, two moments and writes weight, moments, BF16 copy")
GROUPED_GEMM_SHARE = fitted(0.76)
FP8_CAST_BYTES = fitted(1.53)
NVFP4_SPEEDUP = fitted(3.1, "fitted to NVFP4 rows of the NVIDIA Megatron-Bridge performance summary (Blackwell)")
FP8_ROWWISE_SPEEDUP = fitted(1.05, "fitted to torchtitan rows of 2025-06: scaling by row costs what FP8 gains")
UNFUSED_SCORE_SHARE = assumed(0.5, "batched products with an inner size of one head reach half of the GEMM asymptote")
OFFSET_SCORE_BYTES = (
    Figure(8.0, "spec", "BF16 scores written, read and written by a fused softmax without dropout, read"),
    Figure(12.0, "spec", "the same backwards: two products and the softmax"),
)
RECURRENCE_SHARE = assumed(
    0.25,
    "chunked scans multiply tiles of 64 to 128: small products at a quarter of the GEMM asymptote; form: arXiv "
    "2405.21060 section 6, arXiv 2412.06464 section 3",
)
KERNEL_LAUNCH_S = assumed(6.0 * MICROSECOND, "launch of one kernel from the host")
KERNELS_PER_LAYER = assumed(26.0, "kernels of one dense layer and direction")
KERNELS_PER_MOE_LAYER = assumed(45.0, "kernels of one MoE layer and direction")
QUANTIZED_WEIGHT_BYTES = Figure(
    1.0, "spec", "weights gathered in INT8 blocks: half of BF16 (ZeRO++, arXiv 2306.10209, section 3.1)"
)
QUANTIZED_GRADIENT_BYTES = Figure(
    1.0, "spec", "gradients reduced in INT4 by all-to-all: a quarter of FP32 on the wire (ZeRO++, section 3.3)"
)
LAYER_GATHER_S = fitted(120.0 * MICROSECOND)

# Device memory.
FRAMEWORK_BYTES = Figure(1.2 * GIB, "fitted", MEMORY_ROWS + ": CUDA context, communicators, workspaces")
FRAGMENTATION_SHARE = assumed(0.04, "blocks that the caching allocator holds but cannot use, of the working set")
GATHERED_LAYERS = Figure(2.0, "spec", "the layer in use and the prefetched one (FSDP2)")
ADAM_BYTES = Figure(8.0, "spec", "two FP32 moments per trained weight (AdamW)")
HOST_UPDATE_BANDWIDTH = assumed(
    50 * GB, "what one GPU's share of a server's memory moves in DeepSpeed's CPU Adam; a Grace CPU does better"
)
GRADIENT_BYTES = Figure(4.0, "spec", "FP32 gradients, reduced in FP32")

# Host memory.
PROCESS_BYTES = assumed(6.0 * GIB, "resident set of one Python worker with torch, CUDA and NCCL loaded")
NODE_BASE_BYTES = assumed(12.0 * GIB, "operating system, Ray's own processes, file cache that cannot be dropped")
REWARD_WORKER_BYTES = assumed(0.75 * GIB, "one reward process: Python with the framework imported, no CUDA context")
DATA_WORKER_BYTES = assumed(1.5 * GIB, "one data loading process")
STORE_MINIMUM_BYTES = assumed(8.0 * GIB, "the least object store that we emit")
STORE_DEFAULT_SHARE = Figure(0.3, "spec", "Ray: 30 % of the node's memory unless object_store_memory is set")
STORE_DEFAULT_LIMIT_BYTES = Figure(200e9, "spec", "Ray: at most 200 GB unless object_store_memory is set")
SAMPLE_TOKEN_BYTES = assumed(120.0, "ids, masks, positions in 64 bits, six FP32 columns, copies between stages")
