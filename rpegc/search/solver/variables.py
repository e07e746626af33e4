"""Data and variables of the integer program. Constraints are in `constraints`, solving in `master`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations

from ortools.sat.python import cp_model

from rpegc.search.solver.boxes import Box, Boxes
from rpegc.search.solver.geometry import overlap
from rpegc.search.solver.problem import HostStage, Problem, Template
from rpegc.search.solver.timing import Pair, Timing

Literal = cp_model.IntVar


class Goal(Enum):
    """What an integer program optimises: the period first, the others among the plans of that period."""

    PERIOD = "period"
    DEVICES = "fewest nodes"
    HEADROOM = "headroom"
    ORDER = "canonical order"


@dataclass(frozen=True, slots=True)
class Meshes:
    """The part of a plan that says where: shapes and cuts of the tree nodes, home of each GPU stage."""

    mesh_classes: tuple[int | None, ...]
    along_gpus: tuple[bool, ...]
    nodes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Data:
    """What one integer program is about.

    `boxes` are the options of each (stage, mesh class); a missing key forbids the combination. `cutoff` is the largest
    period of interest (ms), `devices` and `order` the largest of these measures (None: no limit), `headroom` the least
    free units per GPU. `fixed` freezes meshes and homes to those of another plan; the boxes stay free.
    """

    problem: Problem
    template: Template
    timing: Timing
    boxes: Boxes
    cutoff: int
    goal: Goal = Goal.PERIOD
    devices: int | None = None
    headroom: int = 0
    order: int | None = None
    fixed: Meshes | None = None

    def classes_of(self, node: int) -> tuple[int, ...]:
        """Mesh classes that a tree node may take."""
        if self.fixed is not None:
            fixed = self.fixed.mesh_classes[node]
            return () if fixed is None else (fixed,)
        shapes = self.problem.mesh_classes
        return tuple(m for m, shape in enumerate(shapes) if node > 0 or shape == self.problem.cluster)

    def homes_of(self, stage: str) -> tuple[int, ...]:
        """Tree nodes that a GPU stage may sit on."""
        return self.template.home(stage) if self.fixed is None else (self.fixed.nodes[stage],)


@dataclass(frozen=True, slots=True)
class Option:
    """One box of one stage on one tree node; `chosen` is 1 if the plan takes it."""

    chosen: Literal
    node: int
    mesh_class: int
    box: Box


@dataclass(slots=True)
class Variables:
    """The unknowns.

    `options[u]`: boxes of GPU stage u. `on[u, g]`: u sits on tree node g. `shape[g, m]`: node g has mesh class m.
    `along_gpus[g]`: the children of g are cut along GPUs. `overlap[u, v]`: u and v may not run at once (absent: they
    may). `start[u]`, `duration[u]`, `parts[u]` (the completion curve) and `period` in milliseconds.
    `headroom` units stay free on every GPU; `devices` exists only for goals after the period.
    """

    model: cp_model.CpModel
    period: cp_model.IntVar
    headroom: cp_model.IntVar
    options: dict[str, list[Option]] = field(default_factory=dict)
    on: dict[tuple[str, int], Literal] = field(default_factory=dict)
    shape: dict[tuple[int, int], Literal] = field(default_factory=dict)
    along_gpus: dict[int, Literal] = field(default_factory=dict)
    overlap: dict[Pair, Literal] = field(default_factory=dict)
    devices: cp_model.IntVar | None = None
    start: dict[str, cp_model.IntVar] = field(default_factory=dict)
    duration: dict[str, cp_model.IntVar] = field(default_factory=dict)
    parts: dict[str, list[cp_model.IntVar]] = field(default_factory=dict)

    def all_options(self) -> list[Option]:
        """Return the options of all stages, in declared order of stages."""
        return [option for options in self.options.values() for option in options]


def declare(data: Data) -> Variables:
    """Declare the variables of an integer program."""
    model = cp_model.CpModel()
    period = model.new_int_var(0, data.cutoff, "period")
    headroom = model.new_int_var(data.headroom, max(data.headroom, data.problem.device_capacity), "headroom")
    v = Variables(model, period, headroom)
    _declare_meshes(data, v)
    _declare_options(data, v)
    _declare_times(data, v)
    _declare_overlaps(data, v)
    return v


def _declare_meshes(data: Data, v: Variables) -> None:
    """Declare shapes and cuts; a single child needs no cut, and whole nodes cannot be cut along GPUs."""
    whole = data.problem.cluster.gpus_per_node
    slices = any(shape.gpus_per_node < whole for shape in data.problem.mesh_classes)
    for node in range(len(data.template.parents)):
        for m in data.classes_of(node):
            given = node == 0 or data.fixed is not None
            v.shape[node, m] = v.model.new_constant(1) if given else v.model.new_bool_var(f"shape[{node},{m}]")
        children = data.template.children(node)
        if data.fixed is not None:
            v.along_gpus[node] = v.model.new_constant(int(data.fixed.along_gpus[node]))
        elif len(children) > 1 and slices:
            v.along_gpus[node] = v.model.new_bool_var(f"along_gpus[{node}]")
        else:
            v.along_gpus[node] = v.model.new_constant(0)


def _declare_options(data: Data, v: Variables) -> None:
    """Declare the options, without the boxes that no plan within the cutoff can contain."""
    shapes = data.problem.mesh_classes
    least: dict[str, int] = {}
    for (name, m), boxes in data.boxes.items():
        work = shapes[m].gpus * min((box.milliseconds for box in boxes), default=0)
        least[name] = min(least.get(name, work), work)
    spare = data.problem.cluster.gpus * data.cutoff - sum(least.values())
    for stage in data.problem.gpu_stages:
        v.options[stage.name] = []
        for node in data.homes_of(stage.name):
            v.on[stage.name, node] = v.model.new_bool_var(f"on[{stage.name},{node}]")
            for m in data.classes_of(node):
                for index, box in enumerate(data.boxes.get((stage.name, m), ())):
                    extra = shapes[m].gpus * box.milliseconds - least[stage.name]
                    if box.milliseconds > data.cutoff or extra > spare:
                        continue
                    chosen = v.model.new_bool_var(f"option[{stage.name},{node},{m},{index}]")
                    v.options[stage.name].append(Option(chosen, node, m, box))


def _declare_times(data: Data, v: Variables) -> None:
    streamed = {edge.source for edge in data.problem.edges if edge.chunks > 1}
    reach = (max(data.timing.distance.values()) + 2) * data.cutoff
    for index, each in enumerate(data.problem.stages):
        name = each.name
        # The schedule may be shifted as a whole: the first stage starts at 0.
        v.start[name] = v.model.new_int_var(-reach if index else 0, reach if index else 0, f"start[{name}]")
        if isinstance(each, HostStage):
            v.duration[name] = v.model.new_constant(each.milliseconds)
            continue
        v.duration[name] = v.model.new_int_var(0, data.cutoff + 1, f"duration[{name}]")
        if name in streamed:
            count = max((len(option.box.completion) for option in v.options[name]), default=1)
            v.parts[name] = [v.model.new_int_var(0, data.cutoff + 1, f"part[{name},{j}]") for j in range(count)]


def _declare_overlaps(data: Data, v: Variables) -> None:
    """Declare which stages exclude each other: known beforehand (constant or absent) or decided by the meshes."""
    names = [stage.name for stage in data.problem.gpu_stages]
    for a, b in combinations(names, 2):
        meets = [overlap(data.template, g, h) for g in data.homes_of(a) for h in data.homes_of(b)]
        _declare_overlap(v, (a, b), all(meets), any(meets))
    ends: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
    ends |= {sync.name: (sync.source, sync.target) for sync in data.problem.syncs}
    order = [stage.name for stage in data.problem.stages if stage.name in ends]
    for a, b in combinations(order, 2):
        if len(ends[a]) == len(ends[b]) == 1:
            continue
        touching = [(x, y) for x in ends[a] for y in ends[b]]
        literals = [v.overlap.get((x, y), v.overlap.get((y, x))) for x, y in touching if x != y]
        surely = any(x == y for x, y in touching) or any(_is_true(literal) for literal in literals)
        _declare_overlap(v, (a, b), surely, any(literal is not None for literal in literals))
    host = {stage.name: stage for stage in data.problem.host_stages}
    for stage in data.problem.host_stages:
        for other in data.problem.stages:
            excluded = other.name in stage.excludes or (other.name in host and stage.name in host[other.name].excludes)
            if excluded and other.name != stage.name and (other.name, stage.name) not in v.overlap:
                _declare_overlap(v, (stage.name, other.name), True, True)


def _declare_overlap(v: Variables, pair: Pair, always: bool, sometimes: bool) -> None:
    if always:
        v.overlap[pair] = v.model.new_constant(1)
    elif sometimes:
        v.overlap[pair] = v.model.new_bool_var(f"overlap[{pair[0]},{pair[1]}]")


def _is_true(literal: Literal | None) -> bool:
    return literal is not None and list(literal.proto.domain) == [1, 1]
