"""Rules across keys of a pipeline file, as a table: where to point, and a function that yields what does not hold.

Types and limits of single keys are in the schema; what needs a model or a machine is in `load.py`; what needs the
stages and their values is in `presets/` and `expand.py`; what the algorithm demands is in `rules_presets.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from rpegc.errors import InputError, guess
from rpegc.frontend.presets import preset_names
from rpegc.frontend.rules_presets import Violation, preset_rules
from rpegc.frontend.schema import PipelineSpec
from rpegc.frontend.schema_cluster import MODEL_CHANGES
from rpegc.frontend.schema_fields import MAX_COUNT
from rpegc.frontend.schema_workload import LengthsSpec
from rpegc.frontend.yaml_source import YamlDocument, printable


def check_rules(spec: PipelineSpec, document: YamlDocument) -> None:
    """Raise `InputError` for the first rule, in file order, that does not hold."""
    violations = [violation for rule in RULES for violation in rule(spec)]
    if not violations:
        return
    placed = [(document.value_position(violation.path), violation) for violation in violations]
    position, first = min(placed, key=lambda pair: (pair[0].line, pair[0].column))
    raise InputError(first.message, position, first.hint)


def _algorithm(spec: PipelineSpec) -> Iterator[Violation]:
    """The algorithm is a preset."""
    if spec.algorithm not in preset_names():
        message = f"`algorithm` is `{printable(spec.algorithm)}`, which is no preset"
        yield Violation(("algorithm",), message, guess(spec.algorithm, preset_names()))


def _actor(spec: PipelineSpec) -> Iterator[Violation]:
    """There is an actor."""
    if "actor" not in spec.models:
        close = guess("actor", spec.models) if spec.models else None
        yield Violation(("models",), "`models.actor` is missing: the model that is trained to act", close)


def _own_model_or_like(spec: PipelineSpec) -> Iterator[Violation]:
    """A role has its own config, or starts from another role, not both."""
    for role, model in spec.models.items():
        path = ("models", role)
        if model.like is None and model.config is None:
            hint = "write `{config: NAME_OR_PATH}` or `{like: ROLE}`"
            yield Violation(path, f"`models.{role}` has neither `config` nor `like`", hint)
        for key in ("config", "weights", "tokenizer"):
            if model.like is not None and getattr(model, key) is not None:
                message = f"`models.{role}` has both `like` and `{key}`: `like: {model.like}` already says the {key}"
                yield Violation((*path, key), message)


def _like_resolves(spec: PipelineSpec) -> Iterator[Violation]:
    """Every chain of `like` ends at a role with a config."""
    for role, model in spec.models.items():
        chain, path = [role], ("models", role, "like")
        while model.like is not None:
            if model.like in chain:
                yield Violation(path, f"`like` goes round in a circle: {' -> '.join([*chain, model.like])}")
                break
            if model.like not in spec.models:
                if len(chain) == 1:
                    others = [name for name in spec.models if name != role]
                    yield Violation(path, f"`models` has no role `{model.like}`", guess(model.like, others))
                break
            chain.append(model.like)
            model = spec.models[model.like]


def _length_form(spec: PipelineSpec) -> Iterator[Violation]:
    """Lengths are given in one of four forms, and mean <= p99 <= max holds."""
    for key, lengths in (
        ("prompt_tokens", spec.workload.prompt_tokens),
        ("response_tokens", spec.workload.response_tokens),
    ):
        path = ("workload", key)
        given = frozenset(name for name in LengthsSpec.model_fields if getattr(lengths, name) is not None)
        if given not in _LENGTH_FORMS:
            shown = ", ".join(name for name in LengthsSpec.model_fields if name in given) or "nothing"
            yield Violation(
                path,
                f"`workload.{key}` gives {shown}",
                "allowed: {fixed}, {mean, max}, {mean, p99, max}, {histogram, max}",
            )
            continue
        ordered = [(name, getattr(lengths, name)) for name in ("mean", "p99", "max") if name in given]
        for (low_name, low), (high_name, high) in pairwise(ordered):
            if low > high:
                message = f"{low_name} <= {high_name} must hold: {low_name} is {low:g}, {high_name} is {high:g}"
                yield Violation((*path, low_name), message, "lengths are those observed after the cut at `max`")


_LENGTH_FORMS = tuple(
    frozenset(form) for form in (("fixed",), ("mean", "max"), ("mean", "p99", "max"), ("histogram", "max"))
)


def _minibatches(spec: PipelineSpec) -> Iterator[Violation]:
    """Every optimizer update gets the same number of whole prompts."""
    prompts, minibatches = spec.workload.prompts_per_step, spec.workload.minibatches_per_step
    if prompts % minibatches:
        message = (
            f"prompts_per_step must be divisible by minibatches_per_step: {prompts} = {prompts // minibatches} * "
            f"{minibatches} + {prompts % minibatches}"
        )
        divisors = sorted(
            (n for n in range(1, min(prompts, 4096) + 1) if prompts % n == 0), key=lambda n: abs(n - minibatches)
        )
        close = " or ".join(str(n) for n in sorted(divisors[:2]))
        yield Violation(("workload", "minibatches_per_step"), message, f"{close} would divide {prompts}")


def _step_size(spec: PipelineSpec) -> Iterator[Violation]:
    """A step has a bearable number of sequences."""
    prompts, samples = spec.workload.prompts_per_step, spec.workload.samples_per_prompt
    if prompts * samples > MAX_COUNT:
        message = (
            f"prompts_per_step * samples_per_prompt must be at most {MAX_COUNT}: {prompts} * {samples} = "
            f"{prompts * samples}"
        )
        yield Violation(("workload", "prompts_per_step"), message)


def _partial_rollout(spec: PipelineSpec) -> Iterator[Violation]:
    """Unfinished samples that carry over are stale."""
    if spec.allow.partial_rollout and spec.allow.max_staleness < 1:
        message = f"partial_rollout needs max_staleness of at least 1, which is {spec.allow.max_staleness}"
        hint = "a sample that carries over holds tokens of older weights"
        yield Violation(("allow", "partial_rollout"), message, hint)


def _model_changes(spec: PipelineSpec) -> Iterator[Violation]:
    """Allowed model changes are known, each named once."""
    changes = spec.allow.model_changes
    for index, change in enumerate(changes):
        path = ("allow", "model_changes", index)
        if change not in MODEL_CHANGES:
            yield Violation(
                path, f"no rewrite that changes the model is called `{printable(change)}`", guess(change, MODEL_CHANGES)
            )
        elif change in changes[:index]:
            yield Violation(path, f"`{change}` stands twice")


def _save_and_test(spec: PipelineSpec) -> Iterator[Violation]:
    """Tests need test data."""
    if spec.training.test_every is not None and spec.data is not None and spec.data.val is None:
        message = f"training.test_every is {spec.training.test_every}, but `data` has no `val` to test on"
        yield Violation(("training", "test_every"), message)


def _cluster(spec: PipelineSpec) -> Iterator[Violation]:
    """One kind of machine, or two pools; what a pool cannot say yet."""
    cluster = spec.cluster
    single = {key: getattr(cluster, key) for key in ("hardware", "nodes")}
    hint = "write `hardware` and `nodes`, or `pools: {train: {...}, rollout: {...}}`"
    for key, value in single.items():
        if cluster.pools is not None and value is not None:
            message = f"cluster.{key} and cluster.pools say the same thing twice"
            yield Violation(("cluster", key), message, f"leave out `{key}`: each pool has its own")
        elif cluster.pools is None and value is None:
            yield Violation(("cluster", key), f"`cluster.{key}` is missing", hint)
    if cluster.pools is None:
        return
    if cluster.usd_per_gpu_hour is not None:
        message = "cluster.usd_per_gpu_hour is one price, but the pools have two kinds of GPU"
        yield Violation(("cluster", "usd_per_gpu_hour"), message, "leave it out")
    if spec.objective != "step_time":
        message = f"objective {spec.objective} is not planned for pools: only step_time is"
        yield Violation(("objective",), message, "leave it out")


RULES: tuple[Callable[[PipelineSpec], Iterator[Violation]], ...] = (
    _algorithm,
    _actor,
    _own_model_or_like,
    _like_resolves,
    _length_form,
    _minibatches,
    _step_size,
    preset_rules,
    _cluster,
    _partial_rollout,
    _model_changes,
    _save_and_test,
)
