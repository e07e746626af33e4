"""The plan in a terminal: at a glance, stages, time by term, memory, rewrites, warnings, what to run next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rpegc.plan import MemoryPhase, Plan, PlannedStage, Simulation
from rpegc.target import describe_layout
from rpegc.units import format_bytes, format_seconds


def console(stderr: bool = False) -> Console:
    """Return a console of the terminal's width, or of 160 columns where the output is no terminal."""
    screen = Console(stderr=stderr, highlight=False, soft_wrap=False)
    return screen if screen.is_terminal else Console(stderr=stderr, highlight=False, width=160)


@contextmanager
def counting(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (done, all) that moves a progress bar; it shows nothing where there is no terminal."""
    columns = (TextColumn("{task.completed}/{task.total} " + what), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def listing(rows: Sequence[Mapping[str, str]], console: Console) -> None:
    """Print rows that share their keys as a table."""
    table = _table(*rows[0])
    for row in rows:
        table.add_row(*(escape(value) for value in row.values()))
    console.print(table)


def summary(plan: Plan, folder: str, console: Console) -> None:
    """Print what a compilation found, and where it lies."""
    for title, body in (("Plan", _glance(plan)), ("Stages", _stages(plan)), ("Warnings", _lines(plan.warnings))):
        if body is not None:
            _section(console, title, body)
    console.print(Text(f"wrote {folder}; `rpegc inspect {folder}` shows all of it"))


def render(plan: Plan, folder: str, console: Console) -> None:
    """Print the report of a plan that lies in `folder`."""
    sections: list[tuple[str, RenderableType | None]] = [
        ("Plan", _glance(plan)),
        ("Stages", _stages(plan)),
        ("Time by term", _terms(plan)),
        ("Memory", _memory(plan)),
        ("Rewrites", _rewrites(plan)),
        ("Alternatives", _alternatives(plan)),
        ("Warnings", _lines(plan.warnings)),
        ("Next", _next(plan, folder)),
    ]
    for title, body in sections:
        if body is not None:
            _section(console, title, body)


def _section(console: Console, title: str, body: RenderableType) -> None:
    console.print(Text(title, style="bold"))
    console.print(body)
    console.print()


def _mode(plan: Plan) -> str:
    return (plan.graph.mode or "default") + (f", engine {plan.graph.engine}" if plan.graph.engine else "")


def _glance(plan: Plan) -> RenderableType:
    table = _table()
    low, high = plan.period_interval_s
    devices = plan.devices
    rows = [
        ("pipeline", f"{plan.name} for {plan.target.name} {plan.target.version}, mode {_mode(plan)}"),
        ("machines", f"{devices.nodes} nodes, {devices.gpus} GPUs of {devices.hardware}, {devices.idle_gpus} idle"),
        *(
            (f"  {p.name}", f"{p.nodes} nodes, {p.gpus} GPUs of {p.hardware}, {p.idle_gpus} idle")
            for p in devices.pools
        ),
        (
            "period",
            f"{format_seconds(plan.period_s)} a step (80 % interval {format_seconds(low)} .. {format_seconds(high)})",
        ),
        *([("simulated", _simulated(plan.simulation))] if plan.simulation else []),
        (
            "proof",
            f"{plan.search.status}: no plan of this space is below {format_seconds(plan.lower_bound_s)}, "
            f"so at most {plan.gap:.2%} is left to gain in it",
        ),
        *([("without limits", _unrestricted(plan))] if plan.unrestricted else []),
        ("throughput", f"{plan.tokens_per_s_per_gpu:,.0f} tokens/s/GPU over all GPUs"),
        ("MFU", f"{plan.mfu:.1%} of training time on training GPUs, recompute not counted"),
        ("cost", _cost(plan)),
        ("bound by", plan.bottleneck),
        ("staleness", f"at most {plan.staleness.bound} versions"),
        ("searched", _searched(plan)),
    ]
    for name, value in rows:
        table.add_row(name, escape(value))
    return table


def _simulated(simulation: Simulation) -> str:
    mean, low, high = (format_seconds(s) for s in (simulation.mean_s, simulation.p10_s, simulation.p90_s))
    busy = ", ".join(f"{mesh} {share:.0%}" for mesh, share in simulation.utilisation.items())
    return f"{mean} a step over {simulation.steps} steps of drawn lengths (80 % of them {low} .. {high}); busy: {busy}"


def _unrestricted(plan: Plan) -> str:
    best = plan.unrestricted
    assert best is not None, "only called with one"
    structure = ", ".join(name for name in best.rewrites if name not in ("place", "insert-transitions"))
    gain = f"{best.gain:.1%} less" if best.gain > 0 else "no less"
    return (
        f"{format_seconds(best.period_s)} a step with every structure and layout of the native engine, {gain} than "
        f"with {plan.target.name} (not below {format_seconds(best.lower_bound_s)}); {structure or 'no rewrites'}"
    )


def _cost(plan: Plan) -> str:
    text = f"{plan.gpu_hours_per_step:.3g} GPU-hours a step"
    if plan.total_steps is not None:
        text += f", {plan.gpu_hours_per_step * plan.total_steps:,.0f} for {plan.total_steps} steps"
    return text if plan.usd_per_step is None else f"{text}; {plan.usd_per_step:,.2f} USD a step"


def _searched(plan: Plan) -> str:
    search = plan.search
    kept = search.layouts - search.layouts_pruned
    return (
        f"space {search.space}: {search.variants} structures, {search.meshes} mesh classes, "
        f"{search.layouts:,} layouts ({kept:,} after pruning)"
    )


def _stages(plan: Plan) -> RenderableType:
    table = _table("stage", "op", "model", "mesh", "start", "time", "layout")
    for stage in sorted(plan.stages, key=lambda s: (s.start_s, s.name)):
        mesh = (
            f"{stage.mesh} {plan.mesh(stage.mesh).mesh_class}"
            if stage.mesh
            else "host"
            if stage.op == "function"
            else ""
        )
        table.add_row(
            stage.name,
            stage.op,
            stage.model,
            mesh,
            format_seconds(stage.start_s),
            format_seconds(stage.seconds),
            describe_layout(stage.layout) if stage.layout else "",
        )
    return table


def _terms(plan: Plan) -> RenderableType:
    table = _table("stage", "term", "exposed", "hidden", "share", "known by")
    for stage in plan.stages:
        terms = sorted(stage.terms.items(), key=lambda item: -item[1].seconds)
        for place, (name, term) in enumerate(terms):
            if term.seconds < 0.005 * stage.seconds and term.hidden_seconds < 0.02 * stage.seconds:
                continue
            table.add_row(
                stage.name if place == 0 else "",
                name,
                format_seconds(term.seconds),
                format_seconds(term.hidden_seconds) if term.hidden_seconds else "",
                _share(term.seconds, stage),
                term.provenance,
            )
    return table


def _share(seconds: float, stage: PlannedStage) -> str:
    return f"{seconds / stage.seconds:.0%}" if stage.seconds else ""


def _memory(plan: Plan) -> RenderableType:
    table = _table("mesh", "while", "GPU", "free", "P(fit)", "largest on the GPU", "host", "free")
    for phase in plan.memory:
        table.add_row(
            phase.mesh,
            phase.phase,
            format_bytes(phase.device_total_bytes),
            format_bytes(phase.device_capacity_bytes - phase.device_total_bytes),
            f"{phase.fit_probability:.3f}",
            _largest(phase),
            format_bytes(phase.host_total_bytes),
            format_bytes(phase.host_capacity_bytes - phase.host_total_bytes),
        )
    return table


def _largest(phase: MemoryPhase) -> str:
    largest = sorted(phase.device_bytes.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {format_bytes(count)}" for name, count in largest)


def _rewrites(plan: Plan) -> RenderableType | None:
    if not plan.rewrites:
        return None
    table = _table("pass", "class", "where", "gain")
    for rewrite in plan.rewrites:
        gain = "" if rewrite.gain is None else f"{rewrite.gain:.1%}"
        table.add_row(rewrite.name, rewrite.semantics, escape(rewrite.where), gain)
    return table


def _alternatives(plan: Plan) -> RenderableType | None:
    if not plan.alternatives:
        return None
    table = _table("period", "difference", "why not")
    for alternative in plan.alternatives:
        difference = ", ".join(f"{key}: {value}" for key, value in alternative.difference.items())
        sign = ">= " if alternative.proven_above else ""
        table.add_row(sign + format_seconds(alternative.period_s), escape(difference), escape(alternative.why))
    return table


def _lines(lines: Iterable[str]) -> RenderableType | None:
    texts = [Text(f"- {line}") for line in lines]
    return Group(*texts) if texts else None


def _next(plan: Plan, folder: str) -> RenderableType:
    launch = f"{folder}/launch"
    native = plan.target.name == "native"  # checks files as it starts, and starts one machine by another script
    local = f"bash {launch}/{'run' if native else 'run_local'}.sh"
    lines = ["from the folder that relative paths of the pipeline start in, on the cluster:"]
    lines += [] if native else [f"  check   bash {launch}/preflight.sh --files"]
    lines += [f"  launch  {local if plan.devices.nodes == 1 else f'sbatch --account=PROJECT {launch}/submit.sbatch'}"]
    return Group(*(Text(line) for line in lines))


def grid(*columns: str) -> Table:
    """Return an empty table without lines, with these columns (none: no header)."""
    table = Table(box=None, pad_edge=True, show_header=bool(columns), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


_table = grid
