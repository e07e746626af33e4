"""Expand a pipeline to its RPEG: recipes say which values they use, here each value finds its maker.

Values travel within a step (distance 0). Weights travel from the stage that trains a role to every stage that runs
it, one step later (distance 1), and to the train stage itself: the next update starts from the last one's result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from rpegc.errors import InputError, SourcePosition, guess
from rpegc.frontend.pipeline import Pipeline
from rpegc.frontend.presets import (
    REWARD_VALUES,
    Recipe,
    loss_of,
    preset_of,
    preset_stage_names,
    removed_outputs,
    stage_recipes,
)
from rpegc.frontend.stage_checks import check_stage
from rpegc.ir.graph import WEIGHTS, Edge, Graph, Op, Stage


def expand(pipeline: Pipeline) -> Graph:
    """Return the RPEG of a pipeline: stages in the preset's order, then the user's; edges in the order of their users.

    Raises `InputError` at the stage's place in the file: a value that nobody or two stages make, a value of the user's
    that nobody uses, a stage that waits for itself within one step, a role without stage or a stage without role.
    """
    spec, recipes = pipeline.spec, stage_recipes(pipeline.spec)
    _check_removals(pipeline)
    for recipe in recipes:
        _check_recipe(recipe, pipeline)
    makers = _makers(recipes, pipeline)
    used = {recipe.name: tuple(_used_values(recipe, makers)) for recipe in recipes}
    for recipe in recipes:
        _check_inputs(recipe, makers, pipeline)
    _check_outputs_used(recipes, used, pipeline)
    _check_roles_used(recipes, pipeline)
    _check_order(recipes, used, makers, pipeline)
    trainers = {recipe.model: recipe.name for recipe in recipes if recipe.op is Op.TRAIN}
    stages = tuple(
        Stage(
            name=recipe.name,
            op=recipe.op,
            model=recipe.model,
            attributes=recipe.attributes,
            position=pipeline.position(recipe.path),
        )
        for recipe in recipes
    )
    edges = [edge for recipe in recipes for edge in _edges(recipe, used[recipe.name], makers, trainers)]
    return Graph(spec.name, stages, tuple(edges))


def _edges(
    recipe: Recipe, used: tuple[str, ...], makers: Mapping[str, str], trainers: Mapping[str, str]
) -> Iterator[Edge]:
    """Yield the edges into one stage."""
    for value in used:
        if value in makers:
            yield Edge(makers[value], recipe.name, value)
    if recipe.model in trainers:
        yield Edge(trainers[recipe.model], recipe.name, WEIGHTS, distance=1)


def _used_values(recipe: Recipe, makers: Mapping[str, str]) -> Iterator[str]:
    """Yield what a stage uses, each value once: what it needs, then what is optional and made by somebody."""
    own_weights = f"{WEIGHTS}({recipe.model})"
    for value in dict.fromkeys(recipe.inputs):
        if value != own_weights:
            yield value
    for value in recipe.optional:
        if value in makers and value not in recipe.inputs:
            yield value


def _makers(recipes: tuple[Recipe, ...], pipeline: Pipeline) -> dict[str, str]:
    """Return who makes each value; weights of a role are made by the one stage that trains it."""
    data = preset_of(pipeline.spec).data
    makers: dict[str, str] = {}
    trainers: dict[str, str] = {}
    for recipe in recipes:
        if recipe.op is Op.TRAIN and trainers.setdefault(recipe.model, recipe.name) != recipe.name:
            message = f"`{trainers[recipe.model]}` and `{recipe.name}` both train `{recipe.model}`; one stage may"
            raise InputError(message, _place(recipe, pipeline, "model"))
        for value in recipe.outputs:
            if value in data or value == WEIGHTS:
                message = f"stage `{recipe.name}` cannot make `{value}`: " + (
                    "it comes from the data" if value in data else "train stages make weights by themselves"
                )
                raise InputError(message, _place(recipe, pipeline, "out"))
            if value in makers:
                message = f"value `{value}` is made twice: by `{makers[value]}` and by `{recipe.name}`"
                hint = f"replace `{makers[value]}` under `stages:`, or give one of the values another name"
                raise InputError(message, _place(recipe, pipeline, "out"), hint)
            makers[value] = recipe.name
    return makers


def _check_removals(pipeline: Pipeline) -> None:
    known = preset_stage_names(pipeline.spec)
    for name, stage in pipeline.spec.stages.items():
        if stage is None and name not in known:
            message = f"`stages.{name}` is null, but preset `{pipeline.spec.algorithm}` has no such stage to remove"
            raise InputError(message, pipeline.position(("stages", name)), guess(name, known))


def _check_recipe(recipe: Recipe, pipeline: Pipeline) -> None:
    """A stage runs a role's model unless it is a function; keys of other ops are refused, never ignored."""
    roles, name = pipeline.spec.models, recipe.name
    if recipe.op is not Op.FUNCTION and not recipe.model:
        message = f"stage `{name}` is a {recipe.op} stage, which needs `model`"
        raise InputError(message, _place(recipe, pipeline), f"roles in `models`: {', '.join(roles)}")
    if recipe.op is Op.FUNCTION and recipe.model:
        message = f"stage `{name}` is a function, which runs no model, but names `{recipe.model}`"
        raise InputError(message, _place(recipe, pipeline, "model"), "a model is run by op forward or generate")
    if recipe.model and recipe.model not in roles:
        message = f"stage `{name}` runs `{recipe.model}`, which `models` does not have"
        raise InputError(message, _place(recipe, pipeline, "model"), guess(recipe.model, roles))
    stage = pipeline.spec.stages.get(name)
    if stage is None:
        return
    for key, ops in KEYS_OF_OPS:
        if getattr(stage, key) is not None and recipe.op not in ops:
            message = f"`{key}` of stage `{name}` means nothing to op {recipe.op}; it belongs to {' and '.join(ops)}"
            raise InputError(message, _place(recipe, pipeline, key))
    check_stage(recipe, stage, pipeline)


KEYS_OF_OPS: tuple[tuple[str, tuple[Op, ...]], ...] = (
    ("head", (Op.FORWARD, Op.TRAIN)),
    ("cpu_seconds_per_sample", (Op.FUNCTION,)),
    ("workers_per_node", (Op.FUNCTION,)),
    ("prompt_tokens", (Op.GENERATE, Op.FORWARD)),
    ("response_tokens", (Op.GENERATE, Op.FORWARD)),
    ("turns", (Op.GENERATE,)),
    ("observation_tokens", (Op.GENERATE,)),
    ("environment", (Op.GENERATE,)),
)
"""Keys of a stage that mean something to some ops alone."""


def _check_inputs(recipe: Recipe, makers: Mapping[str, str], pipeline: Pipeline) -> None:
    """Everything that a stage needs is made by somebody; a preset's advantages need some reward."""
    removed, data = removed_outputs(pipeline.spec), preset_of(pipeline.spec).data
    for value in recipe.inputs:
        if value.startswith(f"{WEIGHTS}("):
            if value != f"{WEIGHTS}({recipe.model})":
                runs = f"runs `{recipe.model}`" if recipe.model else "runs no model"
                message = f"stage `{recipe.name}` {runs}, so it cannot use `{value}`"
                raise InputError(message, _place(recipe, pipeline, "in"))
        elif value not in makers and value not in data:
            message = f"value `{value}` is used by stage `{recipe.name}`, but no stage makes it"
            place, hint = _place(recipe, pipeline, "in"), guess(value, (*makers, *data))
            if value in removed:
                place = pipeline.position(("stages", removed[value]))
                hint = f"the preset's stage `{removed[value]}` made it"
            raise InputError(message, place, hint)
    if recipe.rewarded and not any(value in makers for value in REWARD_VALUES):
        hint = "add a `reward:` block, a model `reward`, or a stage with `out: [rewards]`"
        path = ("stages", removed["rewards"]) if "rewards" in removed else recipe.path
        raise InputError("nothing gives rewards, so there is nothing to learn from", pipeline.position(path), hint)


def _check_outputs_used(recipes: tuple[Recipe, ...], used: Mapping[str, tuple[str, ...]], pipeline: Pipeline) -> None:
    """A value that the user asks for is used: a preset's own unused values are left to the passes."""
    wanted = {value for values in used.values() for value in values}
    replaced = removed_outputs(pipeline.spec)
    for recipe in recipes:
        for value in recipe.outputs:
            if recipe.path[0] == "stages" and value not in wanted and value not in replaced:
                message = f"value `{value}` of stage `{recipe.name}` is used by no stage"
                hint = "name it in the `in:` of a stage; to add it to a preset's stage, write that stage out"
                raise InputError(message, _place(recipe, pipeline, "out"), hint)


def _check_roles_used(recipes: tuple[Recipe, ...], pipeline: Pipeline) -> None:
    """Every role is run by some stage, or another role starts from it."""
    spec = pipeline.spec
    running = {recipe.model for recipe in recipes} | {model.like for model in spec.models.values()}
    for role in spec.models:
        if role not in running:
            message = f"`models.{role}` is used by no stage of {spec.algorithm}"
            hint = f"remove it, or add a stage with `model: {role}` under `stages:`"
            if role == "critic" and loss_of(spec).advantages != "critic":
                message += ", which " + (
                    "takes advantages from the group of one prompt" if spec.algorithm == "grpo" else "has no critic"
                )
                hint = "remove `critic`, or use `algorithm: ppo`"
            raise InputError(message, pipeline.position(("models", role)), hint)


def _check_order(
    recipes: tuple[Recipe, ...], used: Mapping[str, tuple[str, ...]], makers: Mapping[str, str], pipeline: Pipeline
) -> None:
    """No stage waits for itself within one step."""
    waits = {name: [makers[value] for value in values if value in makers] for name, values in used.items()}
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as problem:
        circle = list(problem.args[1])
        named = next((r for r in recipes if r.name in circle and r.path[0] == "stages"), recipes[0])
        message = f"stages wait for each other within one step: {' -> '.join(circle)}"
        raise InputError(message, _place(named, pipeline, "in")) from None


def _place(recipe: Recipe, pipeline: Pipeline, key: str = "") -> SourcePosition | None:
    """Return where a user's stage says `key`, or where the preset was asked for."""
    return pipeline.position((*recipe.path, key) if key and recipe.path[0] == "stages" else recipe.path)
