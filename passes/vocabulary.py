"""What several passes ask of a graph: values by name, who is trained, how old generated samples may be."""

from __future__ import annotations

from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.rewrite import Context

OLD_LOGPROBS = "old_logprobs"
"""Log-probs under the actor before this step's updates (the proximal policy)."""
BEHAVIOUR_LOGPROBS = "behaviour_logprobs"
"""Log-probs as the generating engine saw them."""
REFERENCE_LOGPROBS = "reference_logprobs"
ADVANTAGES = "advantages"
VALUES = "values"
SCOPE = "scope"
"""Attribute of a function: what its result for one sample depends on ("sample", "group" or "batch")."""


def old_logprob_stages(graph: Graph) -> tuple[Stage, ...]:
    """Return the forward stages that make old log-probs and nothing else."""
    return tuple(
        stage
        for stage in graph.of_op(Op.FORWARD)
        if {edge.value for edge in graph.out_of(stage.name)} == {OLD_LOGPROBS}
    )


def publications(graph: Graph) -> tuple[tuple[Edge, int], ...]:
    """Return the weight edges into generate stages, each with its distance from the train stage (through a sync)."""
    found = []
    for edge in graph.edges:
        if edge.carries_weights and graph.stage(edge.target).op is Op.GENERATE:
            before = graph.into(edge.source) if graph.stage(edge.source).op is Op.SYNC else ()
            found.append((edge, edge.distance + sum(hop.distance for hop in before)))
    return tuple(found)


def is_synchronous(graph: Graph) -> bool:
    """Whether every generate stage of a trained model uses the weights of the step before."""
    return all(distance == 1 for _, distance in publications(graph))


def fired(graph: Graph, name: str) -> bool:
    """Whether a pass of this name is on record."""
    return any(rewrite.name == name for rewrite in graph.rewrites)


def forbidden_somewhere(name: str, context: Context) -> bool:
    """Whether some placement of the target cannot express a rewrite, so that the graph without it stays of use."""
    return any(name in pattern.forbids for pattern in context.capabilities.placements)


def per_sample(graph: Graph, function: Stage) -> bool:
    """Whether a function treats each sample alone: it says so (`scope`), or it judges an engine's samples directly.

    A function that makes advantages without saying so may whiten them over the batch, as PPO's do in common targets.
    """
    scope = function.attribute(SCOPE)
    if scope:
        return scope == "sample"
    read = [graph.stage(edge.source).op for edge in graph.into(function.name)]
    makes_advantages = any(edge.value == ADVANTAGES for edge in graph.out_of(function.name))
    return bool(read) and all(op is Op.GENERATE for op in read) and not makes_advantages
