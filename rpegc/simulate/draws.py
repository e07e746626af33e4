"""The response lengths of each simulated step, and what they change in the seconds of each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rpegc.cost.rollout import TAIL_SHARE as ENGINE_TAIL
from rpegc.cost.segments import cut_tokens, drawn_segments, segment
from rpegc.ir.graph import Op, Stage
from rpegc.ir.meaning import CARRIES, SAMPLES, TAIL_SHARE
from rpegc.lengths import Lengths
from rpegc.plan import Plan, PlannedStage

_PER_UPDATE = frozenset({"fixed", "optimizer", "data_parallel", "offload_parameters", "offload_optimizer"})
"""Terms of training and forward stages that are paid per update or pass, whatever its tokens."""


@dataclass(frozen=True, slots=True)
class _Factors:
    """One step's lengths over the expected ones: mean prompt, mean response, all tokens, tail of the longest."""

    prompt: float
    response: float
    tokens: float
    tail: float


class Draws:
    """The lengths of each step, drawn from the distributions of the plan's pipeline."""

    def __init__(self, plan: Plan, seed: int) -> None:
        workload, histograms = plan.pipeline["workload"], plan.pipeline["histograms"]
        self._prompts, self._samples = int(workload["prompts_per_step"]), int(workload["samples_per_prompt"])
        self._prompt = resolved_lengths(workload["prompt_tokens"], histograms.get("prompt_tokens", ()))
        self._response = resolved_lengths(workload["response_tokens"], histograms.get("response_tokens", ()))
        self._seed = seed
        self._usual: dict[_Part, _Usual] = {}
        self._parts = {stage.name: _part_of(stage) for stage in plan.graph.of_op(Op.GENERATE)}
        self._drawn: dict[tuple[_Part, int], _Factors] = {}
        self._own = {stage.name for stage in plan.graph.stages if stage.attribute("response_max")}

    def change_s(self, stage: PlannedStage, step: int) -> float:
        """Return by how many seconds a stage takes longer in a step than planned."""
        if stage.name in self._own:
            return 0.0
        factors = self._factors(self._parts.get(stage.name, _WHOLE), step)
        if stage.op == Op.GENERATE:
            special = {"tail": factors.tail, "prefill": factors.prompt, "environment": 1.0}
            return sum(t.seconds * (special.get(name, factors.response) - 1.0) for name, t in stage.terms.items())
        if stage.op in (Op.TRAIN, Op.FORWARD):
            varying = sum(term.seconds for name, term in stage.terms.items() if name not in _PER_UPDATE)
            return varying * (factors.tokens - 1.0)
        return 0.0

    def _factors(self, part: _Part, step: int) -> _Factors:
        if (part, step) not in self._drawn:
            self._drawn[part, step] = self._draw(part, step)
        return self._drawn[part, step]

    def _usual_of(self, part: _Part) -> _Usual:
        """Return what prices expect of a part of the samples, in tokens."""
        if part not in self._usual:
            count = self._prompts * self._samples
            lengths, share, cut = self._response, 1.0, 0
            if part != _WHOLE:
                cut = cut_tokens(self._response, *part)
                own = segment(self._prompt, self._response, *part)
                lengths, share = own.response, own.share
            self._usual[part] = _Usual(
                total=share * count * lengths.mean,
                tail_from=float(lengths.quantile(1.0 - ENGINE_TAIL)),
                longest=lengths.expected_maximum(max(1.0, share * count)),
                cut=cut,
            )
        return self._usual[part]

    def _draw(self, part: _Part, step: int) -> _Factors:
        generator = np.random.default_rng((self._seed, step))
        prompts = self._prompt.sample(generator, self._prompts, 1)
        drawn = self._response.sample(generator, self._prompts, self._samples)
        usual = self._usual_of(part)
        prompt, response = float(prompts.mean()), float(drawn.mean())
        flat = drawn.reshape(-1).astype(np.float64)
        own = flat if part == _WHOLE else drawn_segments(flat, usual.cut, part[0], part[2])
        most = usual.longest - usual.tail_from
        excess = max(0.0, float(own.max(initial=0.0)) - usual.tail_from)
        return _Factors(
            prompt=prompt / self._prompt.mean,
            response=float(own.sum()) / usual.total,
            tokens=(prompt + response) / (self._prompt.mean + self._response.mean),
            tail=excess / most if most >= 1.0 else 1.0,  # the tail starts at the cut: it cannot be longer
        )


_Part = tuple[str, float, int]
"""Which samples an engine finishes, the share of the tail, how often a sample may carry over."""
_WHOLE: _Part = ("", 0.0, 0)


@dataclass(frozen=True, slots=True)
class _Usual:
    """What prices expect of a step's segments: tokens in all, where the tail starts, the longest, and the cut."""

    total: float
    tail_from: float
    longest: float
    cut: int


def _part_of(stage: Stage) -> _Part:
    share = float(stage.attribute(TAIL_SHARE, 0.0))
    return str(stage.attribute(SAMPLES)), share, int(stage.attribute(CARRIES, 0))


def resolved_lengths(given: Mapping[str, Any], histogram: Sequence[Sequence[int]]) -> Lengths:
    """Build the distribution that a resolved pipeline describes."""
    if given["fixed"] is not None:
        return Lengths.fixed(given["fixed"])
    if given["histogram"] is not None:
        return Lengths.from_histogram(((tokens, count) for tokens, count in histogram), given["max"])
    if given["p99"] is not None:
        return Lengths.from_mean_p99(given["mean"], given["p99"], given["max"])
    return Lengths.from_mean(given["mean"], given["max"])
