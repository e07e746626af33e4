"""What must hold of one stage of the user's beyond the types of its keys: lengths of its own, turns, an environment."""

from __future__ import annotations

from rpegc.errors import InputError, guess
from rpegc.frontend.pipeline import Pipeline
from rpegc.frontend.presets import Recipe
from rpegc.frontend.schema_stage import StageLengthsSpec, StageSpec
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths, LengthsError

_FORMS = (("fixed",), ("mean", "max"), ("mean", "p99", "max"))


def check_stage(recipe: Recipe, stage: StageSpec, pipeline: Pipeline) -> None:
    """Raise `InputError`, at its place, for lengths and turns that a stage cannot have."""
    _check_own_lengths(recipe, stage, pipeline)
    _check_turns(recipe, stage, pipeline)


def _check_own_lengths(recipe: Recipe, stage: StageSpec, pipeline: Pipeline) -> None:
    """A stage that generates from what others made has lengths of its own; both come together and fit the model."""
    path = ("stages", recipe.name)
    both = {"prompt_tokens": stage.prompt_tokens, "response_tokens": stage.response_tokens}
    given = {key: lengths for key, lengths in both.items() if lengths is not None}
    if recipe.op is Op.GENERATE and "prompts" not in recipe.inputs and len(given) < 2:
        read = ", ".join(f"`{value}`" for value in recipe.inputs) or "nothing"
        message = f"stage `{recipe.name}` generates from {read}, so that its lengths are its own"
        hint = "give `prompt_tokens` and `response_tokens`: what it reads and writes for each of its inputs"
        raise InputError(message, pipeline.position(path), hint)
    if len(given) == 1:
        (key,) = given
        other = next(name for name in both if name != key)
        message = f"stage `{recipe.name}` has `{key}` without `{other}`"
        raise InputError(message, pipeline.position((*path, key)), "give both, or none for the lengths of the step")
    longest = sum(_lengths(recipe.name, key, lengths, pipeline).max for key, lengths in given.items())
    architecture = pipeline.architectures[recipe.model] if given else None
    if architecture is not None and longest > architecture.max_positions:
        message = (
            f"longest prompt + longest response of stage `{recipe.name}` must be at most the positions of "
            f"`{recipe.model}` ({architecture.name}): {longest} > {architecture.max_positions}"
        )
        raise InputError(message, pipeline.position((*path, "response_tokens")))


def _lengths(stage: str, key: str, given: StageLengthsSpec, pipeline: Pipeline) -> Lengths:
    """Return the distribution of a stage's own lengths. Raises `InputError` where there is none."""
    position = pipeline.position(("stages", stage, key))
    names = tuple(name for name in ("fixed", "mean", "p99", "max") if getattr(given, name) is not None)
    if names not in _FORMS:
        message = f"`{key}` of stage `{stage}` gives {', '.join(names) or 'nothing'}"
        raise InputError(message, position, "allowed: {fixed}, {mean, max}, {mean, p99, max}")
    if given.fixed is not None:
        return Lengths.fixed(given.fixed)
    try:
        return Lengths.from_figures(given.mean or 0.0, given.longest, given.p99)
    except LengthsError as problem:
        raise InputError(f"`{key}` of stage `{stage}`: {problem.message}", position, problem.hint or None) from None


def _check_turns(recipe: Recipe, stage: StageSpec, pipeline: Pipeline) -> None:
    """Several turns need somebody who answers, and leave something to generate."""
    path, turns = ("stages", recipe.name), stage.turns or 1
    if turns == 1:
        for key in ("observation_tokens", "environment"):
            if getattr(stage, key) is not None:
                message = f"stage `{recipe.name}` has `{key}`, but one turn only"
                raise InputError(message, pipeline.position((*path, key)), "give `turns` of at least 2")
        return
    functions = [name for name, other in pipeline.spec.stages.items() if other is not None and other.op == "function"]
    if stage.environment not in functions:
        answers = f"no function stage `{stage.environment}` under `stages:` answers them"
        message = f"stage `{recipe.name}` has {turns} turns, and " + (
            answers if stage.environment else "no `environment` that answers them"
        )
        hint = guess(stage.environment or "", functions) if functions else "add a stage `{op: function, ...}`"
        raise InputError(message, pipeline.position((*path, "environment" if stage.environment else "turns")), hint)
    own, added = stage.response_tokens, (turns - 1) * (stage.observation_tokens or 0.0)
    responses = _lengths(recipe.name, "response_tokens", own, pipeline) if own else pipeline.response_lengths()
    if added >= responses.mean:
        message = (
            f"the environment of stage `{recipe.name}` adds {turns - 1} x {stage.observation_tokens:g} = {added:g} "
            f"tokens, but a response has {responses.mean:g} in the mean, those of the environment included"
        )
        raise InputError(message, pipeline.position((*path, "observation_tokens")))
