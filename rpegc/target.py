"""The vocabulary that passes, prices, search and backends share: layouts, meshes, rules, ties, capabilities.

Data only. A *layout* says how one stage splits one model on its mesh. Tables hold many layouts as *columns*: one
NumPy array per field, so that a rule, a price or a filter is one expression over all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpegc.errors import InputError
from rpegc.units import format_count

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]
"""One array per layout field (see `ShardedLayout`, `EngineLayout`), plus the read-only context columns `gpus`,
`nodes`, `gpus_per_node` of the mesh. Words such as `recompute` are stored as their index in `WORDS[field]`."""

WORDS: dict[str, tuple[str, ...]] = {
    "recompute": ("none", "selective", "full"),
    "precision": ("bf16", "fp8"),
}


@dataclass(frozen=True, slots=True)
class ShardedLayout:
    """How a `train` or `forward` stage splits its model; dp * cp * ulysses * tp * pp = GPUs of the mesh.

    `ep * etp` divides dp * cp * ulysses * tp. `shard_size` ranks share one copy of what `zero` shards (FSDP group;
    it divides dp * cp * ulysses). Exactly one of `micro_batch` (sequences) and `token_budget` (tokens per GPU before
    the multiplication by ulysses * cp) is non-zero. Offload flags move a state to host memory while it is idle
    (`offload_parameters`, `offload_optimizer`) or between forward and backward (`offload_activations`).
    """

    dp: int = 1
    cp: int = 1
    ulysses: int = 1
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    shard_size: int = 1
    micro_batch: int = 0
    token_budget: int = 0
    recompute: str = "none"
    offload_parameters: bool = False
    offload_optimizer: bool = False
    offload_activations: bool = False


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """How a `generate` stage splits its model; replicas * engine_dp * tp * pp = GPUs of the mesh.

    `max_sequences` and `batched_tokens` bound one engine's batch; `memory_fraction` is the share of *total* device
    memory that an engine may hold (vLLM, SGLang); `offload` = the engine releases weights and KV cache outside
    of its stage (sleep mode).
    """

    replicas: int = 1
    engine_dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    max_sequences: int = 256
    memory_fraction: float = 0.5
    batched_tokens: int = 8192
    precision: str = "bf16"
    offload: bool = False


Layout = ShardedLayout | EngineLayout

SHARDED_FIELDS = tuple(entry.name for entry in fields(ShardedLayout))
ENGINE_FIELDS = tuple(entry.name for entry in fields(EngineLayout))


def columns_of(layouts: list[Any], mesh: MeshClass) -> dict[str, NDArray[Any]]:
    """Turn layouts of one kind, on one mesh class, into columns (words become indices)."""
    columns: dict[str, NDArray[Any]] = {}
    for entry in fields(layouts[0]):
        values = [getattr(layout, entry.name) for layout in layouts]
        if entry.name in WORDS:
            values = [WORDS[entry.name].index(value) for value in values]
        columns[entry.name] = np.asarray(values)
    return with_mesh(columns, mesh)


def with_mesh(columns: Columns, mesh: MeshClass) -> dict[str, NDArray[Any]]:
    """Add the context columns `gpus`, `nodes` and `gpus_per_node` of a mesh class."""
    rows = len(next(iter(columns.values())))
    extended = dict(columns)
    for name, value in (("gpus", mesh.gpus), ("nodes", mesh.nodes), ("gpus_per_node", mesh.gpus_per_node)):
        extended[name] = np.full(rows, value, dtype=np.int64)
    return extended


def packed(columns: list[IntArray]) -> IntArray:
    """Return one number a row that orders rows as the tuple of their (whole, not negative) values does.

    Sorting one column instead of rows of several is what makes large tables quick to number.
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    room = 1
    for column in columns:
        base = int(column.max(initial=0)) + 1
        room *= base
        if room > np.iinfo(np.int64).max:  # so many distinct values that codes must stand for them
            values, key = np.unique(key, return_inverse=True)
            room = len(values) * base
        key = key * base + column
    return key


def layout_at(columns: Columns, row: int) -> Layout:
    """Return one row of a table as a layout."""
    kind: type[ShardedLayout] | type[EngineLayout] = EngineLayout if "replicas" in columns else ShardedLayout
    values: dict[str, Any] = {}
    for entry in fields(kind):
        value = columns[entry.name][row].item()
        values[entry.name] = WORDS[entry.name][value] if entry.name in WORDS else value
        if isinstance(entry.default, bool):
            values[entry.name] = bool(value)
    return kind(**values)


def describe_layout(layout: Layout) -> str:
    """Return a layout in the field's shorthand, leaving out what has no effect."""
    if isinstance(layout, EngineLayout):
        parts = [f"{layout.replicas} replicas", f"tp {layout.tp}", f"{layout.max_sequences} seqs"]
        parts += [f"memory {layout.memory_fraction:g}", f"batch {format_count(layout.batched_tokens)} tokens"]
        parts += [f"{name} {getattr(layout, name)}" for name in ("pp", "ep", "engine_dp") if getattr(layout, name) > 1]
        parts += ["sleeps"] if layout.offload else []
        return ", ".join(parts + ([layout.precision] if layout.precision != "bf16" else []))
    degrees = ("dp", "ulysses", "cp", "tp", "pp", "vpp", "ep", "etp")
    parts = [f"{name} {getattr(layout, name)}" for name in degrees if getattr(layout, name) > 1]
    parts.append("distributed optimizer" if layout.zero == 1 else f"ZeRO-{layout.zero} over {layout.shard_size}")
    parts.append(f"{format_count(layout.token_budget)} tokens" if layout.token_budget else f"{layout.micro_batch} seqs")
    parts += [f"recompute {layout.recompute}"] if layout.recompute != "none" else []
    moved = [name for name in ("parameters", "optimizer", "activations") if getattr(layout, f"offload_{name}")]
    return ", ".join(parts + ([f"offload {'+'.join(moved)}"] if moved else []))


@dataclass(frozen=True, slots=True, order=True)
class MeshClass:
    """What the price of a mesh depends on: its shape. `nodes` whole nodes or a slice of `gpus_per_node` of each.

    `pool` names the part of a cluster of unlike machines that it lies in; "" where all machines are alike.
    """

    nodes: int
    gpus_per_node: int
    pool: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of the mesh."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node}"


@dataclass(frozen=True, slots=True, order=True)
class Mesh:
    """A rectangle of GPUs: `gpus_per_node` GPUs from `first_gpu` on, of `nodes` nodes from `first_node` on.

    Nodes are counted in the mesh's `pool`; "" is the whole cluster.
    """

    name: str
    first_node: int
    nodes: int
    first_gpu: int
    gpus_per_node: int
    pool: str = ""

    @property
    def mesh_class(self) -> MeshClass:
        """The shape of this rectangle."""
        return MeshClass(self.nodes, self.gpus_per_node, self.pool)

    @property
    def gpus(self) -> int:
        """GPUs of the mesh."""
        return self.nodes * self.gpus_per_node

    def overlaps(self, other: Mesh) -> bool:
        """Whether the two rectangles share a GPU."""
        return (
            self.pool == other.pool
            and self.first_node < other.first_node + other.nodes
            and other.first_node < self.first_node + self.nodes
            and self.first_gpu < other.first_gpu + other.gpus_per_node
            and other.first_gpu < self.first_gpu + self.gpus_per_node
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing a target refuses: filters whole tables, and checks the chosen row again before emission.

    `source` names the file of the target that enforces it, or would crash on it at run time. `message` is a sentence
    whose braces name columns; it is filled with the values of the offending row. `capacity` marks a rule that refuses
    for lack of memory: if only such rules stand in the way, nothing fits, and the input is not wrong.
    """

    name: str
    source: str
    message: str
    allows: Callable[[Columns], BoolArray]
    capacity: bool = False

    def check(self, layout: Layout, mesh: MeshClass, context: Mapping[str, Any], where: str) -> None:
        """Raise `InputError` unless the rule allows this layout; `context` supplies the extra columns."""
        columns = columns_of([layout], mesh)
        for name, value in context.items():
            columns[name] = np.asarray([value])
        if not bool(self.allows(columns)[0]):
            values = {name: array[0].item() for name, array in columns.items()}
            raise InputError(f"{where}: {self.message.format(**values)} [{self.name}; {self.source}]")


@dataclass(frozen=True, slots=True)
class Tie:
    """Stages that the target runs with the same values in these layout fields, on the same mesh."""

    stages: tuple[str, ...]
    fields: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class PlacementPattern:
    """One way in which a target can place stages: a tree of meshes and the stages allowed on each.

    `parents[g]` is the parent of tree node g (node 0 is the whole cluster, its own parent). `homes` maps a selector
    ("stage:<name>", "model:<role>", "op:<op>", "*"; the more specific wins) to the tree nodes that such stages may sit
    on; an empty tuple is no place at all. `mode` is the target's own word for the launch mode (empty if it has none).
    With `barrier` no stage of a step starts before the step before has ended. `weight_distance` bounds the distance
    of weights -> generate that this pattern supports, (low, high). `requires` / `forbids` name rewrites that the mode
    implies or cannot express. `refuses` names values that it cannot carry beside a stage of a role ("": at all).
    """

    name: str
    mode: str
    parents: tuple[int, ...]
    homes: Mapping[str, tuple[int, ...]]
    weight_distance: tuple[int, int] = (1, 1)
    requires: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    refuses: Mapping[str, str] = field(default_factory=dict)
    barrier: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a target can express: placements, allowed values per stage kind and field, rules, ties and rewrites.

    A target with several training engines has one of these for each; `engine` is its word for this one ("" if it has
    one engine only). `field_values[(op, field)]` lists the values the target accepts for a field in stages of that op
    ("train", "forward", "generate"); an absent entry leaves the search space's own list. `menus[(op, field)]` is tried
    in place of the space's list: for fields whose values the target itself decides, or that it batches in another
    form. `engine_class` names the family of constants that prices use ("fsdp", "megatron"). `structures` names the
    passes that the target can express. Where `kinds` names a word for a stage's (op, role), `field_values` and `rules`
    are looked up by that word instead of the op, and prices use `kind_classes[word]`: a reward model that is served is
    no pass of the training engine.
    """

    name: str
    version: str
    engine_class: str
    placements: tuple[PlacementPattern, ...]
    field_values: Mapping[tuple[str, str], tuple[Any, ...]]
    rules: Mapping[str, tuple[Rule, ...]]
    ties: tuple[Tie, ...]
    structures: frozenset[str]
    menus: Mapping[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    engine: str = ""
    kinds: Mapping[tuple[str, str], str] = field(default_factory=dict)
    kind_classes: Mapping[str, str] = field(default_factory=dict)

    def accepted(self, op: str, role: str, name: str) -> tuple[Any, ...] | None:
        """Return the values accepted for a layout field of a role's stages; None where the target has no say."""
        return self.field_values.get((self.kinds.get((op, role), op), name))

    def rules_for(self, op: str, role: str) -> tuple[Rule, ...]:
        """Return the rules that a role's stages of this op obey."""
        return self.rules.get(self.kinds.get((op, role), op), ())

    def class_for(self, op: str, role: str) -> str:
        """Return the family of constants that prices a role's stages of this op."""
        return self.kind_classes.get(self.kinds.get((op, role), op), self.engine_class)
