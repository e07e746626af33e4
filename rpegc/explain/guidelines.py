"""The statements of [PF] that apply to a plan, each with the plan's own numbers.

[PF] = "Performance Foundations of Parallel & Distributed Reasoning Language Models", arXiv 2608.27046. A statement is
here if a plan can go along with it or against it; where a plan goes against one, its numbers say what it got for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rpegc.cost.work import StageWork
from rpegc.ir.graph import Op
from rpegc.ir.work_depth import STEP_SCHEMES
from rpegc.plan import Plan, PlannedStage
from rpegc.reasons import Guideline
from rpegc.target import EngineLayout, ShardedLayout
from rpegc.units import format_bytes, format_seconds

Rule = Callable[[Plan, Mapping[str, StageWork]], Iterator[Guideline]]

SMALL_GAIN = 0.01
"""Relative gains below this are no gain: the tolerance that a plan is proven to."""


def guidelines(plan: Plan, works: Mapping[str, StageWork]) -> tuple[Guideline, ...]:
    """Return the statements that apply, in [PF]'s order: between models first, then within one."""
    return tuple(found for rule in RULES for found in rule(plan, works))


def _of(plan: Plan, *ops: Op) -> list[PlannedStage]:
    return [stage for stage in plan.stages if stage.op in ops]


def _phases(plan: Plan) -> tuple[float, list[float], list[float]]:
    """Return the seconds of generation, of each assessment and of each training."""
    generate = sum(stage.seconds for stage in _of(plan, Op.GENERATE))
    assess = [stage.seconds for stage in _of(plan, Op.FORWARD, Op.FUNCTION)] or [0.0]
    train = [stage.seconds for stage in _of(plan, Op.TRAIN)] or [0.0]
    return generate, assess, train


def _generation_dominates(plan: Plan, works: Mapping[str, StageWork]) -> Iterator[Guideline]:
    del works
    generate, assess, train = _phases(plan)
    whole = generate + sum(assess) + sum(train)
    if generate:
        share = (generate + sum(assess)) / whole
        yield Guideline(
            "generation and assessment take most of a step (over 90 % in OpenRLHF)",
            f"here {share:.0%} of the stages' seconds: generation {format_seconds(generate)}, assessment "
            f"{format_seconds(sum(assess))}, training {format_seconds(sum(train))}",
            share > 0.5,
        )


def _disaggregation(plan: Plan, works: Mapping[str, StageWork]) -> Iterator[Guideline]:
    del works
    generate, assess, train = _phases(plan)
    together = STEP_SCHEMES["co-located"](generate, assess, train)
    apart = STEP_SCHEMES["asynchronous"](generate, assess, train)
    split = len(plan.meshes) > 1
    if not split:
        statement = "disaggregation alone gives no speed-up: stages of one step wait for each other"
        gpus = plan.meshes[0].gpus
        evidence = f"all stages take turns on {gpus} GPUs: the chain of a step is {format_seconds(together)}"
        yield Guideline(statement, evidence, True)
    elif plan.staleness.bound:
        statement = "disaggregation pays where asynchrony lets both sides run at once: max(G + A, T)"
        evidence = (
            f"{len(plan.meshes)} meshes, staleness {plan.staleness.bound}: max(G + A, T) = {format_seconds(apart)} "
            f"against a chain of {format_seconds(together)}; the period is {format_seconds(plan.period_s)}"
        )
        yield Guideline(statement, evidence, plan.period_s < together * (1 - SMALL_GAIN))
    else:
        statement = "disaggregation alone gives no speed-up: stages of one step wait for each other"
        evidence = f"{len(plan.meshes)} meshes without staleness, the period is {format_seconds(plan.period_s)}"
        yield Guideline(statement, evidence, False)


def _token_chain(plan: Plan, works: Mapping[str, StageWork]) -> Iterator[Guideline]:
    for stage in _of(plan, Op.GENERATE):
        longest = works[stage.name].response_tokens.max
        yield Guideline(
            "no scheme within a model removes the chain of tokens: the longest response bounds generation",
            f"{stage.name}: {longest:,.0f} dependent tokens at most in {format_seconds(stage.seconds)}, "
            f"{format_seconds(stage.seconds / max(1, longest))} for each if the longest were alone",
            True,
        )


def _tensor_parallel_rollout(plan: Plan, works: Mapping[str, StageWork]) -> Iterator[Guideline]:
    for stage in _of(plan, Op.GENERATE):
        architecture = works[stage.name].architecture
        if isinstance(stage.layout, EngineLayout) and architecture is not None:
            weights = architecture.parameters * 2.0
            capacity = max(phase.device_capacity_bytes for phase in plan.memory)
            fits = weights < 0.5 * capacity * stage.layout.memory_fraction
            yield Guideline(
                "tensor parallelism in generation only where the model does not fit a GPU",
                f"{stage.name}: tp {stage.layout.tp}; its weights take {format_bytes(weights)} of a GPU's "
                f"{format_bytes(capacity)} in bf16"
                + (", so tp is here for the latency of the longest responses" if fits and stage.layout.tp > 1 else ""),
                stage.layout.tp == 1 or not fits,
            )


def _sharding(plan: Plan, works: Mapping[str, StageWork]) -> Iterator[Guideline]:
    del works
    trained = {stage.model for stage in _of(plan, Op.TRAIN)}
    for stage in _of(plan, Op.TRAIN, Op.FORWARD):
        frozen = stage.model not in trained
        if isinstance(stage.layout, ShardedLayout) and (frozen or stage.op == Op.TRAIN):
            zero = stage.layout.zero
            statement = "plain replicas for models that only run forward" if frozen else "ZeRO for trained models"
            evidence = f"{stage.name}: ZeRO-{zero} over {stage.layout.shard_size}"
            yield Guideline(statement, evidence, zero < 3 if frozen else zero >= 1)


def _frozen(plan: Plan, works: Mapping[str, StageWork]) -> Iterator[Guideline]:
    del works
    trained = {stage.model for stage in _of(plan, Op.TRAIN)}
    for stage in _of(plan, Op.FORWARD):
        if stage.model not in trained and isinstance(stage.layout, ShardedLayout):
            away = stage.layout.offload_parameters
            where = "in host memory while idle" if away else "on the GPUs all the time"
            yield Guideline("frozen models are the ones to offload or quantise", f"{stage.name}: weights {where}", away)


def _asynchrony(plan: Plan, works: Mapping[str, StageWork]) -> Iterator[Guideline]:
    del works
    if not plan.staleness.bound and _of(plan, Op.GENERATE):
        generate, assess, train = _phases(plan)
        best = STEP_SCHEMES["asynchronous"](generate, assess, train)
        yield Guideline(
            "asynchrony shortens the chain of a step to max(G + A, T), at the price of staleness and of a second copy",
            f"no staleness here; max(G + A, T) of these stages is {format_seconds(best)} of "
            f"{format_seconds(plan.period_s)}, but on separate GPUs each side has fewer of them",
            False,
        )


RULES: tuple[Rule, ...] = (
    _generation_dominates,
    _disaggregation,
    _asynchrony,
    _token_chain,
    _tensor_parallel_rollout,
    _sharding,
    _frozen,
)
"""One rule a statement."""
