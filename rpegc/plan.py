"""The plan: what was decided, what it is expected to cost, and how sure that is. Self-contained, as `plan.json`.

SI units: `_s` seconds, `_bytes` bytes. No wall-clock time in it, so that equal input gives an equal file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rpegc.errors import InputError
from rpegc.ir.graph import Edge, Graph, Op, Rewrite, Stage
from rpegc.target import EngineLayout, Layout, Mesh, ShardedLayout

SCHEMA = "rpegc.plan/1"


@dataclass(frozen=True, slots=True)
class Target:
    """The framework that runs the plan, and the version its files were written for."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Objective:
    """What was minimised, and the value reached (seconds, GPU-hours or USD per step)."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class PoolDevices:
    """The machines of one pool of a plan on unlike machines."""

    name: str
    hardware: str
    nodes: int
    gpus: int
    gpus_per_node: int
    idle_gpus: int


@dataclass(frozen=True, slots=True)
class Devices:
    """The machines of the plan; `idle_gpus` are allocated but on no used mesh.

    With `pools` of unlike machines `hardware` names them all, counts are sums, `gpus_per_node` is the first pool's.
    """

    hardware: str
    nodes: int
    gpus: int
    gpus_per_node: int
    idle_gpus: int
    pools: tuple[PoolDevices, ...] = ()

    def numbering(self, pool: str) -> tuple[int, int]:
        """Return the number of a pool's first GPU, counted through the pools in order, and the GPUs of its nodes."""
        first = 0
        for devices in self.pools:
            if devices.name == pool:
                return first, devices.gpus_per_node
            first += devices.gpus
        return 0, self.gpus_per_node


@dataclass(frozen=True, slots=True)
class PlannedTerm:
    """One term of a stage's bill: exposed and hidden seconds, and how the figure is known."""

    seconds: float
    hidden_seconds: float
    provenance: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage as bound: its mesh ("" for host functions), layout (None if it has none), start and seconds.

    Members of a composite share start and seconds; their terms together add up to those. `completion` lists the
    seconds until equal parts of the step's samples are done, of a stage that streams ((): at an even pace).
    """

    name: str
    op: str
    model: str
    mesh: str
    layout: Layout | None
    start_s: float
    seconds: float
    interval: tuple[float, float]
    terms: dict[str, PlannedTerm]
    completion: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryPhase:
    """Memory of one GPU of a mesh, and of one of its nodes, while one stage runs there."""

    mesh: str
    phase: str
    device_bytes: dict[str, float]
    device_total_bytes: float
    device_capacity_bytes: float
    fit_probability: float
    host_bytes: dict[str, float]
    host_total_bytes: float
    host_capacity_bytes: float


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    """A rewrite that fired: pass, semantics class, where, and the relative gain in period over the plan without it."""

    name: str
    semantics: str
    where: str
    gain: float | None


@dataclass(frozen=True, slots=True)
class Staleness:
    """Versions between generation and training: the bound that holds, the expected mean and maximum."""

    bound: int
    mean: float
    max: int


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """What was searched: counts before and after pruning, and whether a limit ended it."""

    space: str
    status: str
    variants: int
    meshes: int
    layouts: int
    layouts_pruned: int
    limit_hit: bool


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another plan that was considered: its period, how it differs, why it lost.

    With `proven_above`, `period_s` is a bound: no plan that differs like this has a shorter period.
    """

    period_s: float
    difference: dict[str, str]
    why: str
    proven_above: bool = False


@dataclass(frozen=True, slots=True)
class Assumption:
    """A figure the prices rest on that the user did not give."""

    what: str
    value: str
    provenance: str
    source: str


@dataclass(frozen=True, slots=True)
class Transition:
    """A weight sync of the bound plan."""

    name: str
    source: str
    target: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """Figures of simulated `steps` with drawn lengths: mean, 10 % and 90 % quantile of a step, busy share by mesh."""

    steps: int
    mean_s: float
    p10_s: float
    p90_s: float
    utilisation: dict[str, float]


@dataclass(frozen=True, slots=True)
class Unrestricted:
    """The best plan without the target's limits: its period and bound, the share of time it saves, its rewrites."""

    period_s: float
    lower_bound_s: float
    gain: float
    rewrites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A bound RPEG with its price and certificate."""

    name: str
    target: Target
    rpegc_version: str
    seed: int
    pipeline: dict[str, Any]
    graph: Graph
    knobs: dict[str, int | float | str]
    transitions: tuple[Transition, ...]
    period_s: float
    period_interval_s: tuple[float, float]
    lower_bound_s: float
    gap: float
    objective: Objective
    tokens_per_s_per_gpu: float
    mfu: float
    gpu_hours_per_step: float
    usd_per_step: float | None
    devices: Devices
    meshes: tuple[Mesh, ...]
    stages: tuple[PlannedStage, ...]
    memory: tuple[MemoryPhase, ...]
    rewrites: tuple[PlannedRewrite, ...]
    staleness: Staleness
    search: SearchRecord
    alternatives: tuple[Alternative, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    bottleneck: str = ""
    simulated_period_s: float | None = field(default=None)
    simulation: Simulation | None = field(default=None)
    unrestricted: Unrestricted | None = field(default=None)

    def stage(self, name: str) -> PlannedStage:
        """Return the planned stage of this name; KeyError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def mesh(self, name: str) -> Mesh:
        """Return the mesh of this name; KeyError if there is none."""
        for mesh in self.meshes:
            if mesh.name == name:
                return mesh
        raise KeyError(name)

    @property
    def total_steps(self) -> int | None:
        """RL steps that the pipeline asks for, if it says so."""
        steps = self.pipeline["training"]["total_steps"]
        return None if steps is None else int(steps)

    def to_json(self) -> str:
        """Return the text of `plan.json`: sorted where order means nothing, newline at the end."""
        return json.dumps(_document(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def pipeline_sha256(pipeline: dict[str, Any]) -> str:
    """Hash the resolved pipeline in canonical JSON."""
    canonical = json.dumps(pipeline, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _document(plan: Plan) -> dict[str, Any]:
    graph = {
        "name": plan.graph.name,
        "mode": plan.graph.mode,
        "engine": plan.graph.engine,
        "tree": list(plan.graph.tree),
        "stages": [
            {
                "name": stage.name,
                "op": stage.op.value,
                "model": stage.model,
                "attributes": dict(stage.attributes),
                "meshes": list(stage.meshes),
                "layouts": {name: list(values) for name, values in stage.layouts},
            }
            for stage in plan.graph.stages
        ],
        "edges": [asdict(edge) for edge in plan.graph.edges],
        "rewrites": [asdict(rewrite) for rewrite in plan.graph.rewrites],
    }
    document: dict[str, Any] = {"schema": SCHEMA}
    for name in Plan.__dataclass_fields__:
        value = getattr(plan, name)
        if name == "graph":
            document["pipeline_sha256"] = pipeline_sha256(plan.pipeline)
            document["graph"] = graph
        elif name == "rewrites":
            document["rewrites"] = [
                {"pass": r.name, "semantics": r.semantics, "where": r.where, "gain": r.gain} for r in value
            ]
        else:
            document[name] = _plain(value)
    return document


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def read_plan(path: Path) -> Plan:
    """Read and validate a `plan.json` (or the folder that holds one).

    Raises InputError if it is missing, not JSON, of another schema, or ill-formed.
    """
    file = path / "plan.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; `rpegc compile` writes it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: not a readable plan.json ({error})") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise InputError(f"{file}: `schema` must be {SCHEMA!r}, got {found!r}")
    return plan_from_document(document, str(file))


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of a plan")


def plan_from_document(document: dict[str, Any], where: str) -> Plan:
    """Build a Plan from the parsed JSON of `plan.json`; raises InputError naming the first ill-formed field."""
    from pydantic import TypeAdapter, ValidationError  # imported late: only readers of plans pay for it

    values = {key: value for key, value in document.items() if key not in ("schema", "pipeline_sha256")}
    try:
        values["graph"] = _graph(values["graph"])
        values["stages"] = [_with_layout(stage) for stage in values["stages"]]
        values["rewrites"] = [{"name": r["pass"], **{k: r[k] for k in r if k != "pass"}} for r in values["rewrites"]]
        plan: Plan = TypeAdapter(Plan).validate_python(values)
        untouched = document.get("pipeline_sha256") == pipeline_sha256(plan.pipeline)
        fault = next(_contradictions(plan, document), None)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{where}: field `{place}`: {first['msg']}") from None
    except Exception as error:  # the file is untrusted: whatever it trips is the file's fault
        raise InputError(f"{where}: ill-formed plan ({type(error).__name__}: {error})") from None
    if not untouched:
        raise InputError(f"{where}: `pipeline_sha256` does not match `pipeline`; the file was edited by hand")
    if fault:
        raise InputError(f"{where}: {fault}; the file was edited by hand")
    return plan


def _contradictions(plan: Plan, document: dict[str, Any]) -> Iterator[str]:
    """Yield what no plan of ours says."""
    meshes = {mesh.name for mesh in plan.meshes}
    steps = plan.pipeline["training"]["total_steps"]
    if not plan.period_s > 0 or not 0 <= plan.lower_bound_s <= plan.period_s or not 0 <= plan.gap <= 1:
        yield f"period {plan.period_s}, bound {plan.lower_bound_s} and gap {plan.gap} contradict each other"
    if not plan.stages or not meshes:
        yield "it has no stages or no meshes"
    if steps is not None and not isinstance(steps, int):
        yield f"training.total_steps is {steps!r}"
    if plan.devices.gpus < 1 or plan.devices.nodes < 1:
        yield f"it has {plan.devices.nodes} nodes and {plan.devices.gpus} GPUs"
    for stage in plan.stages:
        if stage.mesh and stage.mesh not in meshes:
            yield f"stage {stage.name!r} sits on {stage.mesh!r}, which is no mesh of the plan"
        for name, value in asdict(stage.layout).items() if stage.layout else ():
            if not isinstance(value, int | float | str):
                yield f"stage {stage.name!r}: {name} is {value!r}"
    if any(CONTROL_CHARACTERS.search(text) for text in _texts(document)):
        yield "a text holds a control character"


CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _graph(data: dict[str, Any]) -> Graph:
    stages = tuple(
        Stage(
            s["name"],
            Op(s["op"]),
            s["model"],
            tuple(sorted(s["attributes"].items())),
            tuple(s["meshes"]),
            tuple((name, tuple(values)) for name, values in s["layouts"].items()),
        )
        for s in data["stages"]
    )
    edges = tuple(Edge(**edge) for edge in data["edges"])
    rewrites = tuple(Rewrite(**rewrite) for rewrite in data["rewrites"])
    return Graph(data["name"], stages, edges, tuple(data["tree"]), data["mode"], rewrites, data.get("engine", ""))


def _with_layout(stage: dict[str, Any]) -> dict[str, Any]:
    layout = stage["layout"]
    if layout is None:
        return stage
    kind = EngineLayout if "replicas" in layout else ShardedLayout
    return {**stage, "layout": kind(**layout)}
