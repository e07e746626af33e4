"""Work (FLOPs) and depth (longest chain of dependent operations) of a real stage, after [PF].

[PF] = "Performance Foundations of Parallel & Distributed Reasoning Language Models", arXiv 2608.27046. Work counts the
real architecture (grouped queries, gated MLPs, experts); depth is [PF]'s, known up to a constant factor, with the
widths that one token passes through.
"""

from __future__ import annotations

import math

from rpegc.architecture import Architecture
from rpegc.cost.work import StageWork
from rpegc.ir.graph import Op


def stage_work_flops(work: StageWork) -> float:
    """Return the FLOPs of a stage over all sequences of one RL step, without recompute; 0 for a function."""
    architecture = work.architecture
    if architecture is None:
        return 0.0
    if work.op is Op.GENERATE:
        prompts = work.prompts * architecture.prefill_flops(work.prompt_tokens.mean)
        return prompts + work.sequences * architecture.decode_flops(work.prompt_tokens.mean, work.response_tokens.mean)
    tokens = work.sequences * work.mean_tokens
    span = causal_span(work)
    if work.op is Op.FORWARD:
        return architecture.forward_flops(tokens, span, work.head)
    return work.epochs * architecture.training_flops(tokens, span, work.head)


def causal_span(work: StageWork) -> float:
    """Return the mean number of tokens that a token attends to: E[m^2] / (2 E[m]) for sequences of m tokens."""
    prompt, response = work.prompt_tokens, work.response_tokens
    mean_square = prompt.second_moment + 2 * prompt.mean * response.mean + response.second_moment
    return mean_square / (2 * work.mean_tokens)


def stage_depth(work: StageWork) -> float:
    """Return the depth of a stage in dependent operations; 0 for a function.

    Forward L log2(d^4 d_ff m / h); training twice that plus log2(B m), once per optimizer update; generation one
    forward of the prompt and one per token of the longest response, which no parallelism removes ([PF], D_gen).
    """
    architecture = work.architecture
    if architecture is None:
        return 0.0
    if work.op is Op.GENERATE:
        return _forward_depth(architecture, work.max_tokens) * (1 + work.response_tokens.max)
    if work.op is Op.FORWARD:
        return _forward_depth(architecture, work.max_tokens)
    updates = work.minibatches * work.epochs
    reduction = math.log2(max(2.0, work.sequences / work.minibatches * work.mean_tokens))
    return updates * (2 * _forward_depth(architecture, work.max_tokens) + reduction)


def _forward_depth(architecture: Architecture, tokens: float) -> float:
    width = architecture.intermediate or architecture.expert_intermediate
    return architecture.layers * math.log2(architecture.hidden**4 * width * tokens / architecture.heads)
