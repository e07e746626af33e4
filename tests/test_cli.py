"""The command line as a user meets it: exit codes, messages without tracebacks, folders all or nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rpegc import cli
from rpegc.plan import read_plan

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "grpo_qwen3_8b.yaml"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run the command line in an empty folder; return exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rpegc", *(str(argument) for argument in arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def edited(tmp_path: Path, old: str, new: str, source: Path = EXAMPLE) -> Path:
    text = source.read_text(encoding="utf-8")
    assert old in text, f"{source} no longer holds {old!r}"
    path = tmp_path / "pipeline.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled") / "plan"
    command = [sys.executable, "-c", "from rpegc.cli import main; main()", "compile", str(EXAMPLE)]
    subprocess.run([*command, "-o", str(folder), "--space", "quick"], check=True, capture_output=True, cwd=ROOT)
    return folder


def test_compile_writes_a_plan_and_a_launch(compiled: Path) -> None:
    names = {path.relative_to(compiled).as_posix() for path in compiled.rglob("*") if path.is_file()}
    assert {"plan.json", "pipeline.rpeg", "launch/submit.sbatch", "launch/preflight.sh"} <= names
    assert os.access(compiled / "launch" / "preflight.sh", os.X_OK)


def test_inspect_shows_the_plan_at_a_glance(run: Run, compiled: Path) -> None:
    code, out, err = run("inspect", compiled)
    assert (code, err) == (0, "")
    for word in (
        "period",
        "80 %",
        "tokens/s/GPU",
        "MFU",
        "bound by",
        "rollout",
        "host",
        "P(fit)",
        "submit.sbatch",
    ):
        assert word in out


def test_inspect_json_is_the_plan_itself(run: Run, compiled: Path) -> None:
    code, out, _ = run("inspect", compiled / "plan.json", "--json")
    assert code == 0
    assert out == (compiled / "plan.json").read_text(encoding="utf-8")
    assert json.loads(out)["schema"] == "rpegc.plan/1"


def test_an_edited_plan_is_refused(run: Run, compiled: Path, tmp_path: Path) -> None:
    document = json.loads((compiled / "plan.json").read_text(encoding="utf-8"))
    document["pipeline"]["workload"]["prompts_per_step"] = 1
    (tmp_path / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    code, _, err = run("inspect", tmp_path)
    assert code == 2
    assert "pipeline_sha256" in err


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "rpegc.plan/9"}', '{"schema": "rpegc.plan/1"}', "\xff"])
def test_what_is_no_plan_is_refused_without_a_traceback(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content, encoding="latin-1")
    code, _, err = run("inspect", tmp_path)
    assert code == 2
    assert "plan.json" in err
    assert "Traceback" not in err


def test_compile_replaces_its_own_output_and_leaves_other_folders_alone(run: Run, tmp_path: Path) -> None:
    path = edited(tmp_path, "nodes: 4", "nodes: 2")
    assert run("compile", path, "-o", "here", "--space", "quick")[0] == 0
    assert run("compile", path, "-o", "here", "--space", "quick")[0] == 0
    assert read_plan(tmp_path / "here").devices.nodes <= 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    code, _, err = run("compile", path, "-o", "mine", "--space", "quick")
    assert code == 2
    assert "left alone" in err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".mine")]


def test_checkpoints_below_a_compiled_folder_are_never_removed(run: Run, tmp_path: Path) -> None:
    path = edited(tmp_path, "nodes: 4", "nodes: 2")
    assert run("compile", path, "-o", "here", "--space", "quick")[0] == 0
    checkpoint = tmp_path / "here" / "launch" / "runs" / "model.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_text("weights", encoding="utf-8")
    code, _, err = run("compile", path, "-o", "here", "--space", "quick")
    assert code == 2
    assert "launch/runs/model.pt" in err
    assert checkpoint.read_text(encoding="utf-8") == "weights"


def test_nothing_fits_names_the_term_and_the_smallest_change(run: Run, tmp_path: Path) -> None:
    path = edited(tmp_path, "Qwen/Qwen3-8B", "Qwen/Qwen3-235B-A22B")
    path = edited(tmp_path, "gh200-alps, nodes: 4, site: alps", "h200-dgx, nodes: 1, site: generic", path)
    code, _, err = run("compile", path, "-o", "never", "--space", "quick")
    assert code == 3, err
    assert "update_actor needs at least" in err
    assert "its largest term is optimizer" in err
    assert not (tmp_path / "never").exists()
    nodes = int(err.split("smallest change that fits: cluster.nodes: ")[1].split()[0])
    grown = edited(tmp_path, "nodes: 1", f"nodes: {nodes}", path)
    assert run("compile", grown, "-o", "fits", "--space", "quick")[0] == 0
    fewer = edited(tmp_path, f"nodes: {nodes}", f"nodes: {nodes - 1}", grown)
    assert run("compile", fewer, "-o", "never", "--space", "quick")[0] == 3


def test_where_nodes_do_not_help_another_machine_is_named(run: Run, tmp_path: Path) -> None:
    """FSDP loads the whole model in FP32 on one rank: 940 GB of host memory, twice what an Alps node has."""
    path = edited(tmp_path, "Qwen/Qwen3-8B", "Qwen/Qwen3-235B-A22B")
    path = edited(tmp_path, "algorithm:", "engine: fsdp\nalgorithm:", path)
    code, _, err = run("compile", path, "-o", "never", "--space", "quick")
    assert code == 3, err
    assert "no number of gh200-alps nodes" in err
    hardware, nodes = re.findall(r"cluster.hardware: (\S+), cluster.nodes: (\d+)", err)[0]
    elsewhere = edited(tmp_path, "gh200-alps, nodes: 4, site: alps", f"{hardware}, nodes: {nodes}, site: generic", path)
    assert run("compile", elsewhere, "-o", "fits", "--space", "quick")[0] == 0


def test_a_link_an_empty_folder_or_an_edited_script_is_never_removed(run: Run, tmp_path: Path) -> None:
    path = edited(tmp_path, "nodes: 4", "nodes: 2")
    assert run("compile", path, "-o", "here", "--space", "quick")[0] == 0
    here = tmp_path / "here"
    script = here / "launch" / "train.sh"
    text = script.read_text(encoding="utf-8")
    script.write_text(text + "# mine\n", encoding="utf-8")
    assert run("compile", path, "-o", "here", "--space", "quick")[0] == 2
    script.write_text(text, encoding="utf-8")
    for make in (lambda p: p.mkdir(), lambda p: p.symlink_to(tmp_path)):
        mine = here / "mine"
        make(mine)
        code, _, err = run("compile", path, "-o", "here", "--space", "quick")
        assert code == 2
        assert "mine" in err
        mine.unlink() if mine.is_symlink() else mine.rmdir()
    assert run("compile", path, "-o", "here", "--space", "quick")[0] == 0


def test_an_interrupt_between_the_renames_leaves_the_old_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = edited(tmp_path, "nodes: 4", "nodes: 2")
    assert run("compile", path, "-o", "here", "--space", "quick")[0] == 0
    before = (tmp_path / "here" / "plan.json").read_bytes()
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    assert run("compile", path, "-o", "here", "--space", "quick")[0] == 130
    assert (tmp_path / "here" / "plan.json").read_bytes() == before


@pytest.mark.parametrize("name", ["/", "n" * 300, "a\x1b[31mb"])
def test_an_impossible_output_folder_is_wrong_input(run: Run, name: str) -> None:
    code, _, err = run("compile", EXAMPLE, "-o", name, "--space", "quick")
    assert code in (0, 2), err
    assert "Traceback" not in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(period_s=-1.0),
        lambda d: d.update(lower_bound_s=1e9),
        lambda d: d.update(stages=[]),
        lambda d: d.update(meshes=[]),
        lambda d: d["stages"][0].update(mesh="nowhere"),
        lambda d: d["stages"][0]["layout"].update(tp={}),
        lambda d: d.update(name="a\x1b[31mb"),
        lambda d: d.update(period_s=float("nan")),
        lambda d: d["devices"].update(gpus=0),
    ],
)
def test_a_tampered_plan_is_refused_without_a_traceback(
    run: Run, compiled: Path, tmp_path: Path, damage: Callable[[dict[str, object]], None]
) -> None:
    document = json.loads((compiled / "plan.json").read_text(encoding="utf-8"))
    damage(document)
    (tmp_path / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    for arguments in (("inspect", tmp_path), ("inspect", tmp_path, "--json")):
        code, _, err = run(*arguments)
        assert code == 2, err
        assert "Traceback" not in err
        assert "\x1b" not in err


BAD = [
    ("prompts_per_step:", "promts_per_step:", "prompts_per_step"),
    ("nodes: 4", "nodes: 0", "nodes"),
    ("nodes: 4", "nodes: many", "nodes"),
    ("gh200-alps", "gh200-alp", "gh200-alps"),
    ("algorithm: grpo", "algorithm: grop", "grpo"),
    ("Qwen/Qwen3-8B", "Qwen/Qwen3-8C", "Qwen/Qwen3-8B"),
    ("max: 16384", "max: 163840", "40960"),
]


@pytest.mark.parametrize(("old", "new", "wanted"), BAD, ids=[new for _, new, _ in BAD])
def test_wrong_input_points_at_the_line(run: Run, tmp_path: Path, old: str, new: str, wanted: str) -> None:
    path = edited(tmp_path, old, new)
    code, _, err = run("compile", path, "-o", "never", "--space", "quick")
    assert code == 2, err
    line = next(n for n, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if new in text)
    assert f"pipeline.yaml:{line}:" in err
    assert wanted in err
    assert "Traceback" not in err
    assert not (tmp_path / "never").exists()


def test_a_missing_file_is_wrong_input(run: Run) -> None:
    code, _, err = run("compile", "absent.yaml")
    assert code == 2
    assert "absent.yaml" in err


@pytest.mark.parametrize("what", ["models", "hardware", "presets", "passes", "backends", "spaces", "sites"])
def test_list_names_what_is_known(run: Run, what: str) -> None:
    code, out, _ = run("list", what)
    assert code == 0
    assert out.strip()
    code, as_json, _ = run("list", what, "--json")
    rows = json.loads(as_json)
    assert len(rows) == len(out.splitlines()) - 1
    assert all(row["name"] in out for row in rows)


def test_list_guesses(run: Run) -> None:
    code, _, err = run("list", "modles")
    assert code == 2
    assert "did you mean `models`" in err


def test_show_prints_text_that_parses_back(run: Run) -> None:
    from rpegc.ir.text import parse_graph, print_graph

    code, out, _ = run("show", EXAMPLE)
    assert code == 0
    assert print_graph(parse_graph(out)) == out


def test_show_work_depth_has_every_stage(run: Run) -> None:
    code, out, _ = run("show", EXAMPLE, "--work-depth")
    assert code == 0
    assert {"rollout", "reference", "update_actor"} <= {line.split(" ")[0] for line in out.splitlines()}
    assert "longest chain: rollout -> " in out


def test_check_accepts_every_example(run: Run) -> None:
    for example in sorted((ROOT / "examples").glob("*.yaml")):
        code, out, err = run("check", example)
        assert code == 0, err
        assert "fine" in out


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "ortools", "pydantic", "jinja2")
    probe = f"import sys; import rpegc.cli; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_the_same_input_gives_the_same_bytes(compiled: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONHASHSEED": "4711", "TZ": "Pacific/Auckland", "LC_ALL": "C"}
    command = [sys.executable, "-c", "from rpegc.cli import main; main()", "compile", str(EXAMPLE)]
    again = tmp_path / "again"
    arguments = [*command, "-o", str(again), "--space", "quick"]
    subprocess.run(arguments, check=True, capture_output=True, cwd=tmp_path, env=environment)
    first = {p.relative_to(compiled): p.read_bytes() for p in sorted(compiled.rglob("*")) if p.is_file()}
    second = {p.relative_to(again): p.read_bytes() for p in sorted(again.rglob("*")) if p.is_file()}
    assert first == second
