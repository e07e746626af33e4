"""The command line: verbs and their options, no logic.

Exit codes: 0 done, 1 a check did not hold (validate, compare --exit-code), 2 wrong input, 3 nothing fits, 4 our fault.

Heavy modules are imported inside the verbs, so that `rpegc --help` answers at once.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from rpegc import __version__
from rpegc.errors import InputError, RpegcError

app = typer.Typer(
    name="rpegc",
    help="Plan RL post-training: a pipeline in YAML becomes a priced, proven plan and the scripts that launch it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

PipelineArgument = Annotated[Path, typer.Argument(help="The pipeline file.", metavar="PIPELINE", show_default=False)]
FolderArgument = Annotated[Path, typer.Argument(help="A compiled folder, or its plan.json.", show_default=False)]
PlanOrPipeline = Annotated[
    Path, typer.Argument(help="A compiled folder, its plan.json, or a pipeline file.", show_default=False)
]
SpaceOption = Annotated[str, typer.Option("--space", help="Search space: quick, default or exhaustive.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("compile")
def compile_command(
    pipeline: PipelineArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write.", show_default="out/<name>")
    ] = None,
    space: SpaceOption = "default",
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the solver.")] = 1,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, max=1.0, help="Gap at which a plan counts as proven.")
    ] = 0.01,
    robust: Annotated[
        bool, typer.Option("--robust", help="Take the plan of the least expected period under the intervals.")
    ] = False,
    candidates: Annotated[
        int, typer.Option("--candidates", min=1, max=9, help="Also write a race of so many unlike plans.")
    ] = 1,
    unrestricted: Annotated[
        bool, typer.Option("--unrestricted", help="Also say what a plan without the target's limits would gain.")
    ] = False,
    trials: Annotated[int, typer.Option("--trials", min=0, max=1000, help="Knobs to try by simulation.")] = 0,
    storage: Annotated[
        Path | None, typer.Option("--storage", help="File that keeps the trials, to go on from.", show_default="none")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="File that keeps what is solved.", show_default="none")
    ] = None,
    flavour: Annotated[
        str,
        typer.Option("--flavour", help="Trainer on deepspeed: trl or openrlhf.", show_default="pipeline's"),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Find the best plan and write it with its launch scripts."""
    from rpegc.compiler import compile_to_folder
    from rpegc.report.terminal import console, summary
    from rpegc.setting import Options

    options = Options(
        space=space,
        seed=seed,
        tolerance=tolerance,
        unrestricted=unrestricted,
        trials=trials,
        storage=storage,
        checkpoint=checkpoint,
        flavour=flavour,
    )
    weighed: tuple[Any, ...] = ()
    with console(stderr=True).status("reading") as status:
        if robust or candidates > 1:
            from rpegc.explain.compile import compile_among

            plan, folder, weighed = compile_among(pipeline, output, options, robust, candidates, status.update)
        else:
            plan, folder = compile_to_folder(pipeline, output, options, status.update)
    if as_json:
        sys.stdout.write(plan.to_json())
    else:
        if weighed:
            from rpegc.report.answers import show_odds

            show_odds(weighed, console())
        summary(plan, _visible(str(folder)), console())
    if plan.search.status == "interrupted":
        raise typer.Exit(130)


@app.command("check")
def check_command(pipeline: PipelineArgument) -> None:
    """Read a pipeline and everything it names; say what is wrong, if anything."""
    from rpegc.queries import check_file

    for line in check_file(pipeline):
        typer.echo(line)


@app.command("show")
def show_command(
    pipeline: PipelineArgument,
    variants: Annotated[bool, typer.Option("--variants", help="Every structure that the passes make.")] = False,
    work_depth: Annotated[
        bool, typer.Option("--work-depth", help="Work and depth of each stage and the step.")
    ] = False,
) -> None:
    """Print the RPEG of a pipeline as text."""
    from rpegc.queries import show_file, work_depth_file

    if variants and work_depth:
        raise InputError("--variants and --work-depth answer different questions: give one of them")
    typer.echo(work_depth_file(pipeline) if work_depth else show_file(pipeline, variants), nl=False)


@app.command("inspect")
def inspect_command(
    folder: FolderArgument,
    as_json: JsonOption = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write the simulated run to this file, for Perfetto.")
    ] = None,
) -> None:
    """Show a compiled plan: what was chosen, what it costs, how sure that is, what to run next."""
    from rpegc.plan import read_plan
    from rpegc.report.terminal import console, render

    plan = read_plan(folder)
    if trace is not None:
        from rpegc.compiler import write_trace

        write_trace(plan, trace)
    if as_json:
        sys.stdout.write(plan.to_json())
    else:
        render(plan, _visible(str(folder.parent if folder.name == "plan.json" else folder)), console())


@app.command("explain")
def explain_command(
    plan: PlanOrPipeline,
    why_not: Annotated[
        list[str] | None,
        typer.Option(
            "--why-not", help="Condition KEY=VALUE: tp=8, rollout.nodes=2, staleness=1, mode=sync, a pass=on."
        ),
    ] = None,
    space: Annotated[
        str | None, typer.Option("--space", help="Search space.", show_default="the plan's, else default")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the solver.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Say why a plan is as it is, and why it is not another."""
    from rpegc.explain.ask import answer
    from rpegc.report.answers import show_explanation, show_verdict
    from rpegc.report.terminal import console

    with console(stderr=True).status("reading") as status:
        explanation, verdicts = answer(plan, why_not or [], space, seed, status.update)
    if as_json:
        document = {"verdicts": [v.document() for v in verdicts]} if why_not else explanation.document()
        typer.echo(json.dumps(document, indent=2))
    elif why_not:
        for verdict in verdicts:
            show_verdict(verdict, console())
    else:
        show_explanation(explanation, console())


@app.command("compare")
def compare_command(
    first: FolderArgument,
    second: FolderArgument,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if the plans differ.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how two plans differ: decisions, figures, seconds term by term, memory."""
    from dataclasses import asdict

    from rpegc.difference import difference
    from rpegc.plan import read_plan
    from rpegc.report.answers import show_difference
    from rpegc.report.terminal import console

    found = difference(read_plan(first), read_plan(second), (_visible(str(first)), _visible(str(second))))
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"same": found.same}, indent=2))
    else:
        show_difference(found, console())
    if exit_code and not found.same:
        raise typer.Exit(1)


@app.command("sweep")
def sweep_command(
    pipeline: PipelineArgument,
    nodes: Annotated[str | None, typer.Option("--nodes", help="Numbers of nodes: 4,8,16.")] = None,
    staleness: Annotated[str | None, typer.Option("--staleness", help="Allowed staleness bounds: 0,1.")] = None,
    response_tokens: Annotated[
        str | None, typer.Option("--response-tokens", help="Mean response tokens; p99 and max scale with them.")
    ] = None,
    batch: Annotated[str | None, typer.Option("--batch", help="Prompts a step: 64,128.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Targets: verl,native.")] = None,
    hardware: Annotated[str | None, typer.Option("--hardware", help="Machines: gh200-alps,dgx-h100.")] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Show the front; nodes and staleness run up to the pipeline's own.")
    ] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the table to this file.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a plot to this .svg or .html file.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=256, help="Processes.")] = 1,
    space: SpaceOption = "default",
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the solver.")] = 1,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, max=1.0, help="Gap at which a plan counts as proven.")
    ] = 0.01,
    as_json: JsonOption = False,
) -> None:
    """Compile a pipeline at many points: a table, a CSV file, a plot, the Pareto front."""
    from rpegc.report.sweeps import show_sweep
    from rpegc.report.terminal import console, counting
    from rpegc.setting import Options
    from rpegc.sweep.files import check_files, write_sweep
    from rpegc.sweep.points import read_axis
    from rpegc.sweep.run import sweep

    given = {"nodes": nodes, "staleness": staleness, "response-tokens": response_tokens, "batch": batch}
    given |= {"target": target, "hardware": hardware}
    axes = {name: read_axis(f"--{name}", text) for name, text in given.items() if text is not None}
    check_files(csv, plot)
    options = Options(space=space, seed=seed, tolerance=tolerance)
    with counting(console(stderr=True), "points") as done:
        found = sweep(pipeline, axes, options, workers, pareto, done)
    write_sweep(found, csv, plot)
    if as_json:
        typer.echo(json.dumps(found.document(), indent=2))
    else:
        show_sweep(found, console(), only_front=pareto)
    if found.interrupted:
        raise typer.Exit(130)


@app.command("estimate")
def estimate_command(
    given: Annotated[
        Path,
        typer.Argument(
            help="A compiled folder, its plan.json, a launch script of verl, a list of overrides, or a CSV of them.",
            show_default=False,
        ),
    ],
    hardware: Annotated[
        str | None, typer.Option("--hardware", help="Machine of a launch script; `rpegc list hardware`.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model of the catalogue in the place of the script's.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Price a given plan and say whether it fits; exit with 3 if it does not."""
    from rpegc.estimates import estimates, judged, to_json
    from rpegc.report.verdict import lines

    found = estimates(given, hardware, model)
    if as_json:
        typer.echo(to_json(found))
    else:
        for line in lines(judged(found)):
            typer.echo(_visible(line))
    if any(not one.fits for one in found.estimates):
        raise typer.Exit(3)
    if not found.estimates:
        raise typer.Exit(2)


@app.command("list")
def list_command(
    what: Annotated[str, typer.Argument(help="models, hardware, presets, passes, backends, spaces or sites.")],
    as_json: JsonOption = False,
) -> None:
    """List what this version knows."""
    from rpegc.queries import known
    from rpegc.report.terminal import console, listing

    rows = known(what)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        listing(rows, console())


@app.command("validate")
def validate_command(
    as_json: JsonOption = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with measured tables.", show_default="those of rpegc")
    ] = None,
    family: Annotated[str | None, typer.Option("--family", help="Only this family.", show_default="all")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    as_bands: Annotated[bool, typer.Option("--bands", help="Print the 80 % bands that prices rest on.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with plots here.")] = None,
    expected: Annotated[
        bool, typer.Option("--expected", help="Take the known misses: fail only where a family got worse.")
    ] = False,
) -> None:
    """Compare prices with published measurements; exit with 1 if a family misses its bar."""
    from rpegc.report.terminal import console, listing
    from rpegc.validate.expected import regressions
    from rpegc.validate.report import bands, markdown, passes, skipped_lines, table, to_json, validate, write_page

    if as_json + as_markdown + as_bands > 1:
        raise InputError("--json, --markdown and --bands are forms of one answer: give one of them")
    results = validate(data, family)
    if as_json or as_markdown or as_bands:
        typer.echo(to_json(results) if as_json else markdown(results) if as_markdown else bands(results))
    else:
        if rows := table(results):
            listing(rows, console())
        for line in skipped_lines(results):
            typer.echo(line)
    if html is not None:
        from rpegc.report.validation_page import page

        write_page(html, page(json.loads(to_json(results))))
    for line in (worse := regressions(results) if expected else []):
        typer.echo(line, err=True)
    if worse or not (expected or passes(results)):
        raise typer.Exit(1)


@app.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of pipeline files, for editors."""
    from rpegc.frontend.schema import pipeline_json_schema

    typer.echo(json.dumps(pipeline_json_schema(), indent=2))


@app.command("version")
def version_command() -> None:
    """Print the version."""
    typer.echo(__version__)


def _visible(text: str) -> str:
    """Return a message with control characters and lone surrogates made visible: they may come from a user's file."""
    return "".join(c if c in "\n\t" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def main() -> None:
    """Run the command line; sort errors by what the reader can do, without a traceback for theirs."""
    try:
        app()
    except RpegcError as error:
        sys.stderr.write(f"error: {_visible(str(error))}\n")
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(0) from None  # the reader of our output has seen enough
    except Exception:
        sys.stderr.write(traceback.format_exc())
        sys.stderr.write("error: this is a fault of rpegc; please report it with the lines above and the pipeline\n")
        raise SystemExit(4) from None
