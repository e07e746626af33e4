"""How a step's samples are cut: waves (streamed chunks) and parts (one for each rank that makes some of the rows).

A generate stage whose outputs are streamed in c chunks makes c waves; each replica adds a part to each wave, whole
groups of one prompt, in the order in which they are finished. A stage that streams works wave by wave; any other waits
for all of them. What needs the whole batch at once (an estimate that whitens over it, several updates a step whose
membership must stay) never streams.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpegc.ir.graph import Graph, Op
from rpegc.plan import Plan
from rpegc.runtime.settings import Settings
from rpegc.target import EngineLayout, ShardedLayout

GROUP_LOCAL = ("grpo", "rloo")
"""Estimators that look at one group alone."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The waves that a stage works in, and the parts that it puts into each wave of what it makes."""

    waves: int
    parts: int


def flows(plan: Plan, settings: Settings) -> dict[str, Flow]:
    """Return the flow of every stage of a plan."""
    found: dict[str, Flow] = {}
    for name in _topological(plan.graph):
        found[name] = _flow(plan, settings, name, found)
    return found


def sample_sources(graph: Graph, name: str) -> tuple[str, ...]:
    """Return the stages whose samples a stage uses in the same step, in the order of the edges."""
    edges = (edge for edge in graph.into(name) if not edge.carries_weights and edge.distance == 0)
    return tuple(dict.fromkeys(edge.source for edge in edges))


def _flow(plan: Plan, settings: Settings, name: str, found: dict[str, Flow]) -> Flow:
    graph, stage, layout = plan.graph, plan.graph.stage(name), plan.stage(name).layout
    if stage.op is Op.GENERATE:
        assert isinstance(layout, EngineLayout), f"{name} has no engine layout"
        chunks = max((edge.chunks for edge in graph.out_of(name)), default=1)
        groups = settings.prompts // (layout.replicas * layout.engine_dp)
        return Flow(max(1, min(chunks, groups)), layout.replicas * layout.engine_dp)
    if stage.op is Op.SYNC:
        return Flow(1, 0)
    sources = sample_sources(graph, name)
    makers = [source for source in sources if graph.stage(source).op is Op.GENERATE]
    counts = {found[source].waves for source in sources}
    unstreamed = any(edge.chunks == 1 for edge in graph.into(name) if edge.source in makers)
    whole = _needs_all(plan, settings, name) or len(counts) != 1 or unstreamed
    waves = 1 if whole else counts.pop()
    if isinstance(layout, ShardedLayout):
        return Flow(waves, layout.dp)
    if is_reward(graph, name) and makers:
        return Flow(waves, found[makers[0]].parts)
    return Flow(waves, 1)


def is_reward(graph: Graph, name: str) -> bool:
    """Whether a function judges samples one by one (it makes rewards), so that each part can be judged where it is."""
    return any(edge.value == "rewards" for edge in graph.out_of(name))


def _needs_all(plan: Plan, settings: Settings, name: str) -> bool:
    stage = plan.graph.stage(name)
    if stage.op is Op.TRAIN:
        return settings.minibatches * settings.epochs > 1
    return (
        stage.op is Op.FUNCTION and not is_reward(plan.graph, name) and settings.options["advantage"] not in GROUP_LOCAL
    )


def _topological(graph: Graph) -> list[str]:
    """Return the stages, each after those whose values of the same step it uses."""
    done: list[str] = []
    names = [stage.name for stage in graph.stages]
    while len(done) < len(names):
        for name in names:
            if name not in done and all(e.source in done for e in graph.into(name) if e.distance == 0):
                done.append(name)
    return done
