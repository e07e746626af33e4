"""What every legal RPEG satisfies, as a table: name, sentence, small function. Rules rely only on the rules above them.

A graph comes from a user's YAML or `.rpeg` text, so a violation is an `InputError`; it names the rule, the node, the
values that break it, and the place when the stage knows one. When a pass builds an illegal graph, `rpegc.rewrite`
turns the same error into our fault.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import networkx

from rpegc.errors import InputError, SourcePosition, guess
from rpegc.ir.fusion import composites, unit_names
from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.target import ENGINE_FIELDS, SHARDED_FIELDS, WORDS

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PASS_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_SEMANTICS = ("exact", "stale", "model")
_LAYOUT_FIELDS = {Op.GENERATE: ENGINE_FIELDS, Op.FORWARD: SHARDED_FIELDS, Op.TRAIN: SHARDED_FIELDS}


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where a rule does not hold: the node in words, the values that break the rule, where it was written."""

    node: str
    values: str
    position: SourcePosition | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class GraphRule:
    """One row of the table: a kebab-case name, the law as a sentence, and the function that yields violations."""

    name: str
    sentence: str
    violations: Callable[[Graph], Iterator[Violation]]


def verify(graph: Graph) -> None:
    """Raise `InputError` for the first rule of the table that the graph breaks; return None for a legal graph."""
    for rule in RULES:
        for violation in rule.violations(graph):
            message = f"{violation.node}: {rule.sentence}; got {violation.values} [{rule.name}]"
            raise InputError(message, violation.position, violation.hint)


def _at(stage: Stage, values: str, hint: str | None = None) -> Violation:
    return Violation(f"stage `{stage.name}`", values, stage.position, hint)


def _on(graph: Graph, edge: Edge, values: str, hint: str | None = None) -> Violation:
    """Return a violation of an edge, placed at its source stage (or its target, if only that exists)."""
    ends = [graph.stage(name) for name in (edge.source, edge.target) if graph.has(name)]
    position = next((stage.position for stage in ends if stage.position), None)
    return Violation(f"edge `{edge.source} -> {edge.target}` ({edge.value})", values, position, hint)


# --- names and values -------------------------------------------------------------------------------------------------


def _some_stage(graph: Graph) -> Iterator[Violation]:
    if not graph.stages:
        yield Violation(f"graph `{graph.name}`", "none")


def _unique_names(graph: Graph) -> Iterator[Violation]:
    counts = Counter(stage.name for stage in graph.stages)
    for stage in reversed(graph.stages):  # the later declaration is the one at fault
        if counts[stage.name] > 1:
            yield _at(stage, f"{counts[stage.name]} stages of this name")


def _identifiers(graph: Graph) -> Iterator[Violation]:
    for stage in graph.stages:
        named = [stage.name, *([stage.model] if stage.model else [])]
        named += [name for name, _ in stage.attributes] + [name for name, _ in stage.layouts]
        for name in named:
            if not _IDENTIFIER.fullmatch(name):
                yield _at(stage, repr(name))
    for edge in graph.edges:
        if not _IDENTIFIER.fullmatch(edge.value):
            yield _on(graph, edge, repr(edge.value))
    for what, word in (("mode", graph.mode), ("engine", graph.engine)):
        if word and not _IDENTIFIER.fullmatch(word.replace("-", "_")):
            yield Violation(f"graph `{graph.name}`", f"{what} {word!r}")


def _attributes(graph: Graph) -> Iterator[Violation]:
    for stage in graph.stages:
        names = [name for name, _ in stage.attributes]
        if names != sorted(set(names)):
            yield _at(stage, f"attributes in the order {names}")
        for name, value in stage.attributes:
            if isinstance(value, float) and not math.isfinite(value):
                yield _at(stage, f"{name} = {value}")


def _models(graph: Graph) -> Iterator[Violation]:
    for stage in graph.stages:
        if stage.op is Op.FUNCTION and stage.model:
            yield _at(stage, f"a function of `{stage.model}`")
        if stage.op is not Op.FUNCTION and not stage.model:
            yield _at(stage, f"a {stage.op} stage without a model")


# --- edges ------------------------------------------------------------------------------------------------------------


def _edge_ends(graph: Graph) -> Iterator[Violation]:
    names = [stage.name for stage in graph.stages]
    for edge in graph.edges:
        for end in (edge.source, edge.target):
            if end not in names:
                yield _on(graph, edge, f"no stage `{end}`", guess(end, names))


def _unique_edges(graph: Graph) -> Iterator[Violation]:
    counts = Counter((edge.source, edge.target, edge.value) for edge in graph.edges)
    for edge in graph.edges:
        if counts[edge.source, edge.target, edge.value] > 1:
            yield _on(graph, edge, f"{counts[edge.source, edge.target, edge.value]} edges")


def _distances(graph: Graph) -> Iterator[Violation]:
    for edge in graph.edges:
        if edge.distance < 0:
            yield _on(graph, edge, f"distance {edge.distance}")


def _no_cycle_within_a_step(graph: Graph) -> Iterator[Violation]:
    # Distances are not negative, so a cycle of total distance 0 uses only edges of distance 0.
    within = networkx.DiGraph([(edge.source, edge.target) for edge in graph.edges if edge.distance == 0])
    for stage in graph.stages:
        if stage.name in within:
            try:
                cycle = networkx.find_cycle(within, stage.name)
            except networkx.NetworkXNoCycle:
                continue
            names = [source for source, _ in cycle]
            yield _at(graph.stage(names[0]), " -> ".join([*names, names[0]]))


def _chunks(graph: Graph) -> Iterator[Violation]:
    for edge in graph.edges:
        if edge.chunks < 1:
            yield _on(graph, edge, f"chunks {edge.chunks}")
        if edge.chunks > 1 and graph.stage(edge.source).op in (Op.TRAIN, Op.SYNC):
            yield _on(graph, edge, f"chunks {edge.chunks} from a {graph.stage(edge.source).op} stage")


def _fused_units(graph: Graph) -> Iterator[Violation]:
    for name, members in composites(graph).items():
        if graph.has(name) or not _IDENTIFIER.fullmatch(name):
            yield _at(members[0], f"a composite called {name!r}")
        ops = {member.op for member in members}
        if len(ops) > 1 or not ops <= {Op.FORWARD, Op.TRAIN}:
            yield _at(members[0], f"`{name}` of {', '.join(sorted(ops))} stages")
        if len({member.meshes for member in members}) > 1:
            yield _at(members[0], f"`{name}` on meshes {[member.meshes for member in members]}")
    unit = unit_names(graph)
    within = networkx.DiGraph([(unit[e.source], unit[e.target]) for e in graph.edges if e.distance == 0])
    try:
        cycle = networkx.find_cycle(within)
    except networkx.NetworkXNoCycle:
        return
    yield Violation(f"composite `{cycle[0][0]}`", " -> ".join([*(source for source, _ in cycle), cycle[0][0]]))


# --- weights ----------------------------------------------------------------------------------------------------------


def _weight_sources(graph: Graph) -> Iterator[Violation]:
    for edge in graph.edges:
        source = graph.stage(edge.source)
        if edge.carries_weights and source.op not in (Op.TRAIN, Op.SYNC):
            yield _on(graph, edge, f"weights from a {source.op} stage")


def _weight_targets(graph: Graph) -> Iterator[Violation]:
    for edge in graph.edges:
        source, target = graph.stage(edge.source), graph.stage(edge.target)
        if edge.carries_weights and target.model != source.model:
            yield _on(graph, edge, f"weights of `{source.model}` into a stage of `{target.model or 'no model'}`")


def _one_weight_source(graph: Graph) -> Iterator[Violation]:
    for stage in graph.stages:
        sources = [edge.source for edge in graph.into(stage.name) if edge.carries_weights]
        if len(sources) > 1:
            yield _at(stage, f"weights from {' and '.join(sources)}")


def _trained_weights(graph: Graph) -> Iterator[Violation]:
    trained = {stage.model for stage in graph.of_op(Op.TRAIN)}
    for stage in graph.stages:
        fresh = any(edge.carries_weights for edge in graph.into(stage.name))
        # Without its adapter a model is what it was before training: nothing to receive.
        if stage.op.on_gpus and stage.model in trained and not fresh and stage.attribute("adapter") != "off":
            yield _at(stage, f"no weights of `{stage.model}`")


def _trains_on_itself(graph: Graph) -> Iterator[Violation]:
    for stage in graph.of_op(Op.TRAIN):
        distances = [edge.distance for edge in graph.out_of(stage.name) if edge.target == stage.name]
        if distances != [1]:
            yield _at(stage, f"self-edges of distances {distances}")


def _sync_shape(graph: Graph) -> Iterator[Violation]:
    for stage in graph.of_op(Op.SYNC):
        sources, targets = list(graph.into(stage.name)), list(graph.out_of(stage.name))
        if len(sources) != 1 or not targets:
            yield _at(stage, f"{len(sources)} sources and {len(targets)} targets")
        for edge in (*sources, *targets):
            if not edge.carries_weights:
                yield _on(graph, edge, f"`{edge.value}` through a sync")
        if any(graph.stage(edge.source).op is not Op.TRAIN for edge in sources):
            yield _at(stage, f"weights from `{sources[0].source}`, a {graph.stage(sources[0].source).op} stage")


# --- domains ----------------------------------------------------------------------------------------------------------


def _tree(graph: Graph) -> Iterator[Violation]:
    for node, parent in enumerate(graph.tree):
        if not 0 <= parent <= max(node - 1, 0):
            yield Violation(f"mesh tree of `{graph.name}`", f"parent {parent} of node {node} in {graph.tree}")


def _mesh_domains(graph: Graph) -> Iterator[Violation]:
    for stage in graph.stages:
        if stage.meshes and not stage.op.on_gpus:
            yield _at(stage, f"meshes {stage.meshes} on a {stage.op} stage")
        ordered = list(stage.meshes) == sorted(set(stage.meshes))
        if not ordered or not all(0 <= node < len(graph.tree) for node in stage.meshes):
            yield _at(stage, f"meshes {stage.meshes} in a tree of {len(graph.tree)} nodes")


def _all_or_none_placed(graph: Graph) -> Iterator[Violation]:
    for stage in graph.stages:
        if stage.op.on_gpus and graph.tree and not stage.meshes:
            yield _at(stage, f"no mesh in a tree of {len(graph.tree)} nodes")


def _layout_fields(graph: Graph) -> Iterator[Violation]:
    for stage in graph.stages:
        allowed = _LAYOUT_FIELDS.get(stage.op, ())
        for name, _ in stage.layouts:
            if name not in allowed:
                yield _at(stage, f"field `{name}` of a {stage.op} stage", guess(name, allowed))
        names = [name for name, _ in stage.layouts]
        if names != sorted(set(names)):
            yield _at(stage, f"fields in the order {names}")


def _layout_values(graph: Graph) -> Iterator[Violation]:
    for stage in graph.stages:
        for name, values in stage.layouts:
            if not values or len(set(values)) != len(values):
                yield _at(stage, f"{name}: {values}")
            unknown = [value for value in values if name in WORDS and value not in WORDS[name]]
            if unknown:
                yield _at(stage, f"{name}: {unknown[0]!r}", guess(str(unknown[0]), WORDS[name]))


def _rewrites(graph: Graph) -> Iterator[Violation]:
    for rewrite in graph.rewrites:
        if rewrite.semantics not in _SEMANTICS or not _PASS_NAME.fullmatch(rewrite.name):
            yield Violation(f"rewrite `{rewrite.name}`", f"semantics `{rewrite.semantics}`")


RULES: tuple[GraphRule, ...] = (
    GraphRule("some-stage", "a pipeline has at least one stage", _some_stage),
    GraphRule("unique-names", "stage names are unique", _unique_names),
    GraphRule(
        "identifiers",
        "names are letters, digits and underscores, no digit first (a mode may have hyphens)",
        _identifiers,
    ),
    GraphRule("attributes", "attributes are sorted by name, each once, numbers finite", _attributes),
    GraphRule("models", "a stage uses a model unless it is a function", _models),
    GraphRule("edge-ends", "an edge starts and ends at stages of the graph", _edge_ends),
    GraphRule("unique-edges", "a stage receives one value of another stage once", _unique_edges),
    GraphRule("distance", "a distance is 0 or more RL steps", _distances),
    GraphRule("causality", "no stage waits for itself within one step", _no_cycle_within_a_step),
    GraphRule(
        "chunks", "an edge has one chunk or more, and several only from a generate, forward or function stage", _chunks
    ),
    GraphRule(
        "fused",
        "stages of one unit have one op (forward or train) and one domain of meshes, and none waits for another",
        _fused_units,
    ),
    GraphRule("weight-source", "weights come from train or sync stages", _weight_sources),
    GraphRule("weight-target", "weights go to stages of the same model", _weight_targets),
    GraphRule("one-weight-source", "a stage receives weights from one stage", _one_weight_source),
    GraphRule("trained-weights", "a stage of a trained model receives its weights", _trained_weights),
    GraphRule("train-self-edge", "a train stage has one self-edge, of distance 1", _trains_on_itself),
    GraphRule("sync-shape", "a sync moves weights from one train stage to at least one stage", _sync_shape),
    GraphRule("tree", "a mesh tree starts with node 0, its own parent, and parents come before children", _tree),
    GraphRule("mesh-domain", "meshes of a GPU stage are nodes of the tree, in order, each once", _mesh_domains),
    GraphRule("all-placed", "once meshes are attached, every GPU stage has one", _all_or_none_placed),
    GraphRule("layout-fields", "layout domains name fields of the stage's layout, in order, each once", _layout_fields),
    GraphRule("layout-values", "a layout domain lists at least one legal value, each once", _layout_values),
    GraphRule("rewrites", "a rewrite is a kebab-case pass that is exact, stale or model", _rewrites),
)
