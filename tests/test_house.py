"""The table of rooms in docs/architecture.md is a test: who may import whom, and who owns the package names."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("rpegc", "passes", "backends", "search_spaces")


def table() -> dict[str, frozenset[str]]:
    """Read the rows `| room | holds | may import |`; rooms are module prefixes, `all` lifts the limit."""
    rows = {}
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            allowed = frozenset(re.findall(r"`([^`]+)`", cells[2]))
            for room in re.findall(r"`([^`]+)`", cells[0]):
                rows[room] = allowed
    return rows


def modules() -> list[tuple[str, Path]]:
    found = []
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def room_of(module: str, rooms: dict[str, frozenset[str]]) -> str:
    fitting = [room for room in rooms if module == room or module.startswith(room + ".")]
    return max(fitting, key=len, default="")


def imports(path: Path) -> set[str]:
    """Every module of ours that a file imports, anywhere in it but under TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: imports are absolute"
    return {name for name in names if name.split(".")[0] in OURS}


def test_every_module_has_a_room() -> None:
    rooms = table()
    homeless = [module for module, _ in modules() if module != "rpegc" and not room_of(module, rooms)]
    assert homeless == []


def test_every_room_of_the_table_exists() -> None:
    known = {module for module, _ in modules()}
    missing = [room for room in table() if not any(m == room or m.startswith(room + ".") for m in known)]
    assert missing == []


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_rooms_import_only_what_the_table_allows(module: str, path: Path) -> None:
    rooms = table()
    room = room_of(module, rooms)
    if not room or "all" in rooms[room]:
        return
    allowed = rooms[room] | {room, "rpegc"}
    foreign = set()
    for name in imports(path):
        target = room_of(name, rooms)
        if target and target not in allowed:
            foreign.add(f"{name} (room {target})")
    assert foreign == set(), f"{module} is in room {room}, which may import {sorted(allowed)}"


def test_rooms_form_no_circle() -> None:
    rooms = table()
    graph: dict[str, set[str]] = {room: set() for room in rooms}
    for module, path in modules():
        source = room_of(module, rooms)
        if source:
            graph[source] |= {room_of(name, rooms) for name in imports(path)} - {source, ""}
    done: set[str] = set()

    def visit(room: str, trail: tuple[str, ...]) -> None:
        assert room not in trail, f"circle: {' -> '.join([*trail, room])}"
        if room not in done:
            for other in sorted(graph[room]):
                visit(other, (*trail, room))
            done.add(room)

    for room in sorted(graph):
        visit(room, ())


def test_rpegc_alone_owns_its_top_level_names() -> None:
    owners = importlib.metadata.packages_distributions()
    for name in OURS:
        assert set(owners.get(name, [])) <= {"rpegc"}, f"another distribution ships {name}: {owners[name]}"


def test_no_main_module() -> None:
    assert not (ROOT / "rpegc" / "__main__.py").exists()


def test_core_never_imports_torch() -> None:
    for module, path in modules():
        text = path.read_text(encoding="utf-8")
        if not module.startswith("rpegc.runtime"):
            assert not re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE), module
