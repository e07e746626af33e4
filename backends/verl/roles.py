"""Which stage of a plan plays which part in verl's fixed pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from rpegc.errors import InputError
from rpegc.plan import Plan, PlannedStage
from rpegc.target import EngineLayout, Mesh, ShardedLayout

PLACES: dict[tuple[str, str], str] = {
    ("generate", "actor"): "rollout",
    ("forward", "actor"): "old_logprobs",
    ("forward", "reference"): "reference",
    ("forward", "reward"): "reward",
    ("forward", "critic"): "values",
    ("forward", "teacher"): "teacher",
    ("train", "critic"): "critic",
    ("train", "actor"): "actor",
}
"""The part that a stage plays, by op and role: verl has no place for any other."""

PRESET_STAGES = {
    "rollout": "rollout",
    "old_logprobs": "old_logprobs",
    "actor": "update_actor",
    "reference": "reference",
    "reward": "reward",
    "values": "values",
    "critic": "update_critic",
    "teacher": "teacher",
}
"""The stage of our presets that plays each part. A test holds that these are their names."""

PLACES_HINT = (
    "verl generates with `actor`, trains `actor` and `critic`, scores with these, `reference`, `reward` and `teacher`"
)


@dataclass(frozen=True, slots=True)
class Sharded:
    """A train or forward stage by name, with its layout and mesh."""

    name: str
    layout: ShardedLayout
    mesh: Mesh


@dataclass(frozen=True, slots=True)
class Engine:
    """The generate stage by name, with its layout and mesh."""

    name: str
    layout: EngineLayout
    mesh: Mesh


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of verl's pipeline that a plan uses; None where it has none.

    `reference_in_actor`: the reference log-probs are a pass of the actor without its adapter.
    """

    rollout: Engine
    actor: Sharded
    old_logprobs: Sharded | None
    reference: Sharded | None
    reference_in_actor: bool
    critic: Sharded | None
    values: Sharded | None
    reward: Sharded | None
    teacher: Sharded | None = None

    @property
    def actor_passes(self) -> tuple[str, ...]:
        """The forward stages that run in the actor's engine, which share one token budget."""
        reference = self.reference if self.reference_in_actor else None
        return tuple(part.name for part in (self.old_logprobs, reference) if part)

    @property
    def actor_engine(self) -> tuple[str, ...]:
        """All stages of the actor's engine, training first."""
        return (self.actor.name, *self.actor_passes)

    @property
    def critic_engine(self) -> tuple[str, ...]:
        """All stages of the critic's engine, training first."""
        return tuple(part.name for part in (self.critic, self.values) if part)

    @property
    def reference_stages(self) -> tuple[str, ...]:
        """The stage of a reference that has an engine of its own."""
        return () if self.reference is None or self.reference_in_actor else (self.reference.name,)


def parts_of(plan: Plan) -> Parts:
    """Sort the stages of a plan into verl's parts; InputError for a stage that verl has no place for."""
    found: dict[str, PlannedStage] = {}
    reference_in_actor = False
    for stage in plan.stages:
        if stage.layout is None:
            continue
        part = _part(plan, stage)
        if part in found:
            raise InputError(f"stage {stage.name}: verl has one place for {part}, already taken by {found[part].name}")
        found[part] = stage
        reference_in_actor = reference_in_actor or (part == "reference" and stage.model == "actor")
    for part in ("rollout", "actor"):
        if part not in found:
            raise InputError(f"the plan has no stage that is verl's {part}: generate and train the model `actor`")
    return Parts(
        rollout=_engine(plan, found["rollout"]),
        actor=_sharded_required(plan, found["actor"]),
        old_logprobs=_sharded(plan, found.get("old_logprobs")),
        reference=_sharded(plan, found.get("reference")),
        reference_in_actor=reference_in_actor,
        critic=_sharded(plan, found.get("critic")),
        values=_sharded(plan, found.get("values")),
        reward=_sharded(plan, found.get("reward")),
        teacher=_sharded(plan, found.get("teacher")),
    )


def _part(plan: Plan, stage: PlannedStage) -> str:
    adapter_off = plan.graph.has(stage.name) and plan.graph.stage(stage.name).attribute("adapter") == "off"
    if stage.op == "forward" and stage.model == "actor" and adapter_off:
        return "reference"
    part = PLACES.get((stage.op, stage.model))
    if part is None:
        message = f"stage {stage.name}: verl has no place for `{stage.op}` of the model `{stage.model}`"
        raise InputError(message, hint=PLACES_HINT)
    return part


def _engine(plan: Plan, stage: PlannedStage) -> Engine:
    if not isinstance(stage.layout, EngineLayout):
        raise InputError(f"stage {stage.name}: a generate stage needs an engine layout")
    return Engine(stage.name, stage.layout, plan.mesh(stage.mesh))


def _sharded(plan: Plan, stage: PlannedStage | None) -> Sharded | None:
    return None if stage is None else _sharded_required(plan, stage)


def _sharded_required(plan: Plan, stage: PlannedStage) -> Sharded:
    if not isinstance(stage.layout, ShardedLayout):
        raise InputError(f"stage {stage.name}: a {stage.op} stage needs a sharded layout")
    return Sharded(stage.name, stage.layout, plan.mesh(stage.mesh))
