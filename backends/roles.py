"""Which stage of a plan plays which part in the fixed pipeline of a trainer: verl, TRL, OpenRLHF."""

from __future__ import annotations

from dataclasses import dataclass

from backends.request import PipelineRequest
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
"""The part that a stage plays, by op and role: these trainers have no place for any other."""

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


def places_hint(target: str) -> str:
    """Return what a target has places for."""
    scoring = "`reference`, `reward` and `teacher`" if target == "verl" else "`reference` and `reward`"
    return f"{target} generates with `actor`, trains `actor` and `critic`, scores with these, {scoring}"


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
    """The parts of the trainer's pipeline that a plan uses; None where it has none.

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


def parts_of(plan: Plan, target: str = "verl") -> Parts:
    """Sort the stages of a plan into parts; InputError for a stage that the target has no place for."""
    found: dict[str, PlannedStage] = {}
    reference_in_actor = False
    for stage in plan.stages:
        if stage.layout is None:
            continue
        part = _part(plan, stage, target)
        if part in found:
            message = f"stage {stage.name}: {target} has one place for {part}, already taken by {found[part].name}"
            raise InputError(message)
        found[part] = stage
        reference_in_actor = reference_in_actor or (part == "reference" and stage.model == "actor")
    for part in ("rollout", "actor"):
        if part not in found:
            raise InputError(f"the plan has no stage that is {target}'s {part}: generate and train the model `actor`")
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


def _part(plan: Plan, stage: PlannedStage, target: str) -> str:
    adapter_off = plan.graph.has(stage.name) and plan.graph.stage(stage.name).attribute("adapter") == "off"
    if stage.op == "forward" and stage.model == "actor" and adapter_off:
        return "reference"
    part = PLACES.get((stage.op, stage.model))
    if part is None:
        message = f"stage {stage.name}: {target} has no place for `{stage.op}` of the model `{stage.model}`"
        raise InputError(message, hint=places_hint(target))
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


def stand_ins(request: PipelineRequest, critic: bool, teacher: bool = False) -> Parts:
    """Return parts with layouts of no meaning, for what is known before the search.

    Reward model and teacher have pools of their own.
    """
    pool, judges, teachers = Mesh("pool", 0, 1, 0, 1), Mesh("judges", 1, 1, 0, 1), Mesh("teachers", 2, 1, 0, 1)
    names = _stage_names(request)

    def sharded(part: str, wanted: bool = True, mesh: Mesh = pool) -> Sharded | None:
        return Sharded(names[part], ShardedLayout(token_budget=1), mesh) if wanted else None

    return Parts(
        rollout=Engine(names["rollout"], EngineLayout(), pool),
        actor=Sharded(names["actor"], ShardedLayout(token_budget=1), pool),
        old_logprobs=sharded("old_logprobs"),
        reference=sharded("reference", request.kl_where != "none"),
        reference_in_actor=request.lora_rank > 0,
        critic=sharded("critic", critic),
        values=sharded("values", critic),
        reward=sharded("reward", request.get("models.reward") is not None, judges),
        teacher=sharded("teacher", teacher, teachers),
    )


def _stage_names(request: PipelineRequest) -> dict[str, str]:
    """Return the stage that plays each part: the user's own where one does, else the preset's."""
    stages = {name: stage for name, stage in request.get("stages", {}).items() if stage is not None}
    own = {PLACES.get((stage["op"], stage.get("model") or "")): name for name, stage in stages.items()}
    return PRESET_STAGES | {part: name for part, name in own.items() if part is not None}
