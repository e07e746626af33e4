"""The composition root: reads like the picture of the house.

pipeline.yaml -> RPEG -> passes -> variants -> price tables -> problems -> best plan -> launch files
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np

import passes
from backends.unrestricted import capabilities as free_capabilities
from passes.homes import homes_of
from passes.place import Place, misfits
from rpegc.cost.table import MemoryTerm
from rpegc.cost.work import StageWork, stage_works
from rpegc.emit import EmittedFile, check_replaceable, replace_folder
from rpegc.errors import InputError, NothingFits
from rpegc.frontend.expand import expand
from rpegc.frontend.load import load_pipeline
from rpegc.frontend.pipeline import Pipeline
from rpegc.hardware import load_machine, machine_names
from rpegc.ir.graph import Graph
from rpegc.ir.text import print_graph
from rpegc.ir.verify import verify
from rpegc.knobs import Knobs, domain_of, knobs_in, tune, worth_it
from rpegc.plan import Plan, Simulation, Target, Unrestricted
from rpegc.report.trace import SHOWN_STEPS, chrome_trace
from rpegc.rewrite import Pass, run_passes
from rpegc.search.assemble import Request, assemble, knobs_of_graph
from rpegc.search.build import build
from rpegc.search.checkpoint import remembering
from rpegc.search.choose import Outcome, Solver, Variant, choose
from rpegc.search.conflict import smallest_conflict
from rpegc.search.diagnose import find_overflow, no_layout, why_unused
from rpegc.search.fixed import check_stages, check_ties, with_fixed
from rpegc.search.ladder import ladder_of
from rpegc.search.pairs import sync_prices
from rpegc.search.remedy import smallest_change, smallest_pool_change
from rpegc.search.solver.problem import Limit
from rpegc.search.tabulate import TableCache, pool_of, tabulate
from rpegc.setting import Options, Setting, setting_of
from rpegc.simulate import Trace, simulate
from rpegc.target import MeshClass

Progress = Callable[[str], None]
SIMULATED_STEPS = (10, 100)
"""Least and most steps behind the plan's simulated figures; 100 know the mean to a tenth of one step's deviation."""
SIMULATED_RESPONSES = 1_000_000
"""Responses to draw for them, which takes a fifth of a second: large steps vary less, and need fewer."""


def compile_to_folder(
    path: Path, folder: Path | None, options: Options, progress: Progress = lambda _: None
) -> tuple[Plan, Path]:
    """Compile a pipeline file and write the plan with its launch files, all or nothing; return both."""
    pipeline = load_pipeline(path)
    folder = folder or Path("out") / pipeline.name
    check_replaceable(folder)
    setting = setting_of(pipeline, options)
    plan = best_plan(setting, progress)
    progress("writing")
    replace_folder(plan_files(plan, setting), folder)
    return plan, folder


def compile_pipeline(pipeline: Pipeline, options: Options, progress: Progress = lambda _: None) -> Plan:
    """Return the best plan of a pipeline. Raises InputError or NothingFits."""
    return best_plan(setting_of(pipeline, options), progress)


def best_plan(setting: Setting, progress: Progress = lambda _: None) -> Plan:
    """Return the best plan of a setting. Raises InputError, or NothingFits with the smallest change that would fit."""
    try:
        outcome = _fitting(setting, progress)
    except NothingFits as problem:
        progress("nothing fits: looking for the smallest change that would")
        raise NothingFits(problem.message, problem.term, _remedy(setting), _conflict(setting)) from None
    plan = bound_plan(setting, outcome)
    if setting.options.trials and not outcome.interrupted:
        plan = _tuned(setting, plan, progress)
    if setting.options.unrestricted and not outcome.interrupted:
        plan = replace(plan, unrestricted=_without_limits(setting, plan, progress))
    return plan


def fitting_plan(setting: Setting, progress: Progress = lambda _: None) -> Plan:
    """Return the best plan of a setting. Raises InputError, or NothingFits without looking for what would fit."""
    return bound_plan(setting, _fitting(setting, progress))


def _fitting(setting: Setting, progress: Progress) -> Outcome:
    progress("rewriting")
    outcome = search(setting, structures(setting), progress)
    if outcome.winner is None and outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.winner is None:
        raise _nothing_fits(setting, outcome)
    return outcome


def _without_limits(setting: Setting, plan: Plan, progress: Progress) -> Unrestricted | None:
    """Return what the best plan without the target's limits would gain; None if that search was interrupted."""
    progress("searching without the target's limits")
    free = unrestricted(setting)
    outcome = search(free, structures(free), progress)
    if outcome.winner is None or outcome.winner.solution.period is None or not outcome.winner.cost:
        return None
    period_s = float(outcome.winner.solution.period) / 1000.0
    bound_s = period_s * min(1.0, outcome.bound_cost / outcome.winner.cost)
    names = tuple(rewrite.name for rewrite in outcome.winner.variant.graph.rewrites)
    return Unrestricted(period_s, bound_s, 1.0 - period_s / plan.period_s, names)


def _tuned(setting: Setting, plan: Plan, progress: Progress) -> Plan:
    """Return the plan with the best knobs that a few trials find: solved at each, judged by simulation."""
    cache, allow, options = TableCache(), setting.context.allow, setting.options

    def evaluate(wanted: Knobs) -> Plan | None:
        progress(f"knobs: {wanted.chunks} chunks, tail {wanted.tail_share:g}, staleness {wanted.staleness}")
        graphs = structures(setting, passes.with_knobs(wanted.chunks, wanted.tail_share))
        chosen = [graph for graph in graphs if knobs_in(knobs_of_graph(graph)) == wanted]
        variants = tuple(variant_of(setting, graph, cache) for graph in chosen)
        limit = Limit(tolerance=options.tolerance, seed=options.seed, follow_up_time=0.0)
        outcome = choose(variants, limit, solver_of(setting), 0.0, setting.pipeline.spec.objective)
        return None if outcome.winner is None else bound_plan(setting, outcome)

    domain = domain_of(setting.context.capabilities.structures, allow.max_staleness)
    gains = worth_it(plan, allow.minimum_gain)
    return tune(plan, evaluate, domain, options.trials, options.seed, options.storage, gains).plan


def solver_of(setting: Setting) -> Solver:
    """Return the solver of a setting, which keeps what it solved if there is a checkpoint."""
    options = setting.options
    return remembering(options.solver, options.checkpoint) if options.checkpoint else options.solver


def _conflict(setting: Setting) -> tuple[str, ...]:
    """Return the fewest of the user's fixed fields that no plan satisfies together; () if they are not to blame."""
    fixed = setting.pipeline.spec.fix
    entries = [(stage, field) for stage, fields in fixed.items() for field in fields]
    if not entries:
        return ()

    def holds(kept: tuple[tuple[str, str], ...]) -> bool:
        fix = {stage: {f: v for f, v in fields.items() if (stage, f) in kept} for stage, fields in fixed.items()}
        pipeline = replace(setting.pipeline, spec=setting.pipeline.spec.model_copy(update={"fix": fix}))
        options = replace(setting.options, space="quick", tolerance=0.9, checkpoint=None)
        try:
            attempt = setting_of(pipeline, options)
            return search(attempt, structures(attempt)[:1]).winner is not None
        except (InputError, NothingFits):
            return False

    found = smallest_conflict(entries, holds)
    return tuple(f"fix.{stage}.{field}: {fixed[stage][field]}" for stage, field in found)


def plan_files(plan: Plan, setting: Setting) -> dict[str, EmittedFile]:
    """Return every file of a compiled folder by relative path. Raises InputError for what the target would refuse."""
    setting = setting.of_engine(plan.graph.engine)
    facts = setting.facts(plan.graph, stage_works(plan.graph, setting.work))
    files = {
        "plan.json": EmittedFile(plan.to_json().encode()),
        "pipeline.rpeg": EmittedFile(print_graph(plan.graph).encode()),
        "trace.json": EmittedFile(chrome_trace(plan, simulate(plan, SHOWN_STEPS, seed=plan.seed)).encode()),
    }
    return files | dict(setting.backend.emit(plan, setting.pipeline.site, facts))


def write_trace(plan: Plan, path: Path) -> None:
    """Write the simulated run of a plan as a Chrome trace. Raises InputError if the file cannot be written."""
    text = chrome_trace(plan, simulate(plan, SHOWN_STEPS, seed=plan.seed))
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def unrestricted(setting: Setting) -> Setting:
    """Return the setting without the target's limits: every structure, placement and layout that rpegc knows.

    Prices are those of the native engine.
    """
    names = frozenset(rewrite.name for rewrite in passes.default_passes())
    free = free_capabilities(names)
    work = replace(setting.work, framework=free.name, engine_class=free.engine_class, class_for=free.class_for)
    return replace(setting, context=replace(setting.context, capabilities=free), work=work, engines=(free,), free=True)


def structures(setting: Setting, rewrites: tuple[Pass, ...] | None = None) -> tuple[Graph, ...]:
    """Run the passes (all, unless told otherwise) for each engine; return the structures that the target can express.

    An engine that refuses a value of `fix:` is left out, unless all of them do.
    """
    found: list[Graph] = []
    problems: list[InputError] = []
    for engine in setting.engines:
        try:
            found += _structures_of(setting.of_engine(engine.engine), rewrites)
        except InputError as problem:
            problems.append(problem)
    if not found:
        raise problems[0]
    return tuple(found)


def _structures_of(setting: Setting, rewrites: tuple[Pass, ...] | None) -> tuple[Graph, ...]:
    graph = expand(setting.pipeline)
    fixed = setting.pipeline.fixed()
    check_stages(fixed, graph, {name: setting.pipeline.position(("fix", name)) for name in fixed})
    graphs = run_passes(rewrites or passes.default_passes(), graph, setting.context, verify)
    if not graphs:
        raise _no_placement(setting, graph)
    for graph in graphs:
        check_ties(graph, fixed, setting.ties_for(graph))
    return tuple(with_fixed(graph, fixed, setting.context.capabilities) for graph in graphs)


def _no_placement(setting: Setting, graph: Graph) -> InputError:
    """Say what keeps the pipeline from the placement of the target that comes nearest, at the stage that it is about.

    Passes before `place` may have fired: the misfits are those of the rewritten graph.
    """
    context, pipeline = setting.context, setting.pipeline
    before = takewhile(lambda rewrite: rewrite.name != Place.name, passes.default_passes())
    rewritten = run_passes(tuple(before), graph, context, verify)
    pairs = [(variant, pattern) for variant in rewritten for pattern in context.capabilities.placements]
    variant, nearest = min(pairs, key=lambda pair: len(tuple(misfits(*pair))))
    homeless = [stage for stage in variant.stages if stage.op.on_gpus and not homes_of(nearest, stage)]
    path: tuple[str, ...] = ("target",)
    if homeless:
        name, role = homeless[0].name, homeless[0].model
        path = ("stages", name) if name in pipeline.spec.stages else ("models", role)
    reasons = "; ".join(misfits(variant, nearest)) or "none keeps what generates on machines of its own (cluster.pools)"
    message = f"target {setting.backend.name} has no placement for this pipeline: {reasons}"
    names = ", ".join(pattern.name for pattern in context.capabilities.placements)
    return InputError(message, pipeline.position(path), f"it knows {names}")


def search(setting: Setting, graphs: tuple[Graph, ...], progress: Progress = lambda _: None) -> Outcome:
    """Price and solve the structures; the outcome's winner is None if nothing fits."""
    cache = TableCache()
    progress("pricing")
    variants = variants_of(setting, graphs, cache)
    progress("searching")
    return decide(setting, variants)


def decide(setting: Setting, variants: tuple[Variant, ...]) -> Outcome:
    """Solve priced structures; the outcome's winner is None if nothing fits."""
    limit = Limit(tolerance=setting.options.tolerance, seed=setting.options.seed)
    gain = setting.context.allow.minimum_gain
    return choose(variants, limit, solver_of(setting), gain, setting.pipeline.spec.objective)


def variants_of(setting: Setting, graphs: tuple[Graph, ...], cache: TableCache) -> tuple[Variant, ...]:
    """Price the structures; one in which some stage has no layout is passed over, unless all are such."""
    variants: list[Variant] = []
    problems: list[InputError | NothingFits] = []
    for graph in graphs:
        try:
            variants.append(variant_of(setting, graph, cache))
        except (InputError, NothingFits) as problem:
            problems.append(problem)
    if not variants:
        raise next((problem for problem in problems if isinstance(problem, NothingFits)), problems[0])
    return tuple(variants)


def variant_of(setting: Setting, graph: Graph, cache: TableCache) -> Variant:
    """Price every layout of one structure and build its integer problem."""
    setting = setting.of_engine(graph.engine)
    machine, rules = setting.machine, setting.context.capabilities.rules_for
    works = stage_works(graph, setting.work)
    facts = setting.facts(graph, works)
    pools, limits = setting.machines, setting.pool_limits(works)
    tables = tabulate(graph, works, facts, rules, setting.meshes, machine, cache, pools)
    for stage in graph.stages:
        if stage.op.on_gpus and not tables.cells[stage.name]:
            meshes = tuple(mesh for mesh in setting.meshes if not pools or mesh.pool == pool_of(stage))
            raise no_layout(stage, meshes, facts[stage.name], rules(stage.op.value, stage.model))
    device, host = setting.capacities_bytes
    homes = {stage.name: stage.meshes for stage in graph.stages if stage.op.on_gpus}
    problem = build(
        graph,
        tables,
        sync_prices(graph, tables, works, machine, pools, setting.link),
        setting.ties_for(graph),
        ladder_of(graph.tree, homes),
        MeshClass(setting.nodes, max([machine.gpus_per_node, *(pool.gpus_per_node for pool in pools.values())])),
        (device, host - _sum(setting.node_terms(works))),
        {pool: (gpu, node - _sum(terms)) for pool, ((gpu, node), terms) in limits.items()},
    )
    return Variant(graph, tables, problem)


def _sum(terms: tuple[MemoryTerm, ...]) -> float:
    return sum(float(term.bytes.sum()) for term in terms)


def bound_plan(setting: Setting, outcome: Outcome) -> Plan:
    """Return the plan of a search that found one, with its simulation."""
    assert outcome.winner is not None, "a plan needs a winner"
    setting = setting.of_engine(outcome.winner.variant.graph.engine)
    pipeline, capabilities = setting.pipeline, setting.context.capabilities
    works = stage_works(outcome.winner.variant.graph, setting.work)
    request = Request(
        name=pipeline.name,
        pipeline=pipeline.resolved(),
        seed=setting.options.seed,
        target=Target(capabilities.name, capabilities.version),
        objective=pipeline.spec.objective,
        space=setting.space.name,
        machine=setting.machine,
        nodes=setting.nodes,
        work_context=setting.work,
        works=works,
        node_terms=setting.node_terms(works),
        capacities_bytes=setting.capacities_bytes,
        meshes=len(setting.meshes),
        tolerance=setting.options.tolerance,
        usd_per_gpu_hour=setting.usd_per_gpu_hour,
        max_staleness=setting.context.allow.max_staleness,
        partial_rollout=setting.context.allow.partial_rollout and "partial-rollout" not in capabilities.structures,
        idle_reason=_idle_reason(setting, outcome.winner.variant, works),
        pools=setting.pools,
        pool_limits=setting.pool_limits(works),
    )
    plan = assemble(request, outcome)
    steps = int(np.clip(SIMULATED_RESPONSES // pipeline.sequences_per_step, *SIMULATED_STEPS))
    return _with_simulation(plan, simulate(plan, steps, seed=plan.seed))


def _with_simulation(plan: Plan, trace: Trace) -> Plan:
    figures = Simulation(trace.steps, trace.mean_s, trace.p10_s, trace.p90_s, dict(trace.utilisation))
    return replace(plan, simulated_period_s=trace.mean_s, simulation=figures)


def _idle_reason(setting: Setting, variant: Variant, works: Mapping[str, StageWork]) -> str:
    """Say what keeps a stage off the whole cluster, or "" if every stage has a layout there."""
    whole = MeshClass(setting.nodes, setting.machine.gpus_per_node)
    if setting.pools:  # no mesh spans the pools
        return ""
    for stage in variant.graph.stages:
        if stage.op.on_gpus and whole not in variant.tables.cells[stage.name]:
            rules = setting.context.capabilities.rules_for(stage.op.value, stage.model)
            return why_unused(stage, whole, setting.facts(variant.graph, works)[stage.name], rules)
    return ""


def _nothing_fits(setting: Setting, outcome: Outcome) -> NothingFits:
    """Name the term that breaks the machine."""
    variant = outcome.attempts[0].variant
    limits = {name: capacities for name, (capacities, _) in setting.pool_limits({}).items()}
    overflow = find_overflow(variant.graph, variant.tables, setting.capacities_bytes, limits)
    cluster = " and ".join(f"{pool.nodes} nodes of {pool.machine.name}" for pool in setting.pipeline.pools)
    message = f"no plan of {setting.pipeline.name} fits {cluster}"
    return NothingFits(message, overflow.sentence)


def _remedy(setting: Setting) -> str:
    """Find the smallest change that fits, on the quick space and with the simplest structure."""
    quick = setting_of(setting.pipeline, replace(setting.options, space="quick", tolerance=0.9))
    first: dict[str, Graph] = {}
    for graph in structures(quick):
        first.setdefault(graph.engine, graph)  # the simplest structure of each engine
    graphs = tuple(first.values())

    def fits(machine: str, nodes: int) -> bool:
        found = load_machine(machine)
        if found.system_nodes and nodes > found.system_nodes:
            return False
        attempt = replace(quick, machine=found, nodes=nodes)
        try:
            return search(attempt, graphs).winner is not None
        except (InputError, NothingFits):
            return False

    def pools_fit(nodes: Mapping[str, int]) -> bool:
        pools = tuple(replace(pool, nodes=nodes[pool.name]) for pool in quick.pools)
        try:
            return search(replace(quick, pools=pools, nodes=sum(nodes.values())), graphs).winner is not None
        except (InputError, NothingFits):
            return False

    if setting.pools:
        return smallest_pool_change(pools_fit, {pool.name: pool.nodes for pool in setting.pools})
    others = [name for name in machine_names() if name != setting.machine.name]
    return smallest_change(fits, setting.machine.name, setting.nodes, others)
