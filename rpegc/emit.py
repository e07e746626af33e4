"""What a backend is, the files it emits, and the quoting that every emitted file needs.

A backend states what its target can express (`Capabilities`) and writes launch files for a bound plan. It never
prices and never decides.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rpegc.errors import InputError
from rpegc.plan import Plan
from rpegc.target import Capabilities, Tie

if TYPE_CHECKING:
    from rpegc.ir.graph import Graph


class EmittedFile(NamedTuple):
    """The bytes of one emitted file, and whether it is to be executable."""

    content: bytes
    executable: bool = False


Files = Mapping[str, EmittedFile]
"""Emitted files by path relative to the output folder, `/`-separated."""


Facts = Mapping[str, Mapping[str, Any]]
"""Context columns of rules, by stage: what the compiler tabulated the stage with."""


class TargetRefusal(InputError):
    """The target cannot run what the pipeline asks for; `path` is the key of the pipeline file that asks for it.

    A path's parts are keys, such as ("target_overrides", "trainer.nnodes") or ("reward",). Whoever holds the file
    turns the path into a line.
    """

    def __init__(self, message: str, path: tuple[str, ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class Backend(Protocol):
    """One target: what it can express, and the files that launch a plan on it."""

    name: str
    version: str

    def capabilities(self, version: str = "", lora_rank: int = 0) -> Capabilities:
        """Return what the target can express, with adapters of that rank; "" is the pinned version.

        Raises InputError for a version that is not supported.
        """
        ...

    def engines(self, pipeline: Mapping[str, Any]) -> tuple[Capabilities, ...]:
        """Return what each training engine of the target can express that a resolved pipeline leaves to the planner.

        `check_pipeline` has passed; so there is one at least.
        """
        ...

    def ties_for(self, graph: Graph) -> tuple[Tie, ...]:
        """Return the stages of this graph that the target runs with the same layout fields."""
        ...

    def check_pipeline(self, pipeline: Mapping[str, Any]) -> None:
        """Raise TargetRefusal for anything in a resolved pipeline that no plan on this target could carry out.

        `pipeline` is what `Pipeline.resolved()` returns and a plan holds. Nothing has been searched yet.
        """
        ...

    def check(self, plan: Plan, facts: Facts | None = None) -> None:
        """Raise InputError for anything in the plan that the target would refuse or crash on.

        It repeats `check_pipeline` on the plan's pipeline. `facts` supplies, per stage, the context columns that
        rules read (sizes of the model, of the machine).
        """
        ...

    def emit(self, plan: Plan, site: str = "", facts: Facts | None = None) -> Files:
        """Return the launch files of a plan for a site ("" is the plan's own); raises what `check` raises."""
        ...


FILE_LIST = "files.txt"
"""Lists what rpegc wrote into a folder (as `sha256sum` does), so that nothing else is ever removed with it."""


def check_replaceable(folder: Path) -> None:
    """Raise InputError if a folder exists that may hold anything but a plan of ours, unchanged."""
    try:
        if not (folder.exists() or folder.is_symlink()):
            return
        if not folder.is_dir() or folder.is_symlink():
            raise InputError(f"{folder}: exists and is not a folder; name another with --output")
        if not any(folder.iterdir()):
            return
        ours = _listed(folder)
        foreign = sorted(set(_entries(folder)) - ours.keys())
        changed = [path for path, digest in ours.items() if _digest_of(folder / path) not in (digest, None)]
    except (OSError, UnicodeError, ValueError) as error:
        raise InputError(f"{folder}: cannot be used as the output folder ({error})") from None
    for paths, what in ((foreign, "holds files that rpegc did not write"), (changed, "holds files edited since")):
        if paths:
            listing = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
            raise InputError(f"{folder}: {what} ({listing}); it is left alone", hint=_ELSEWHERE)


_ELSEWHERE = "name another folder with --output, or move this one away"


def _listed(folder: Path) -> dict[str, str]:
    """Return the digests by path that we left in a folder; InputError if it is none of ours."""
    try:
        lines = (folder / FILE_LIST).read_text(encoding="utf-8").splitlines()
        listed = {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
        if "plan.json" not in listed or not (folder / "plan.json").is_file():
            raise ValueError("no plan")
    except (OSError, ValueError):
        raise InputError(f"{folder}: exists and holds no plan of rpegc; it is left alone", hint=_ELSEWHERE) from None
    return listed


def _entries(folder: Path) -> Iterator[str]:
    """Yield every file, link and empty folder below a folder, but for the list itself."""
    for path in folder.rglob("*"):
        leaf = path.is_symlink() or not path.is_dir() or not any(path.iterdir())
        if leaf and path != folder / FILE_LIST:
            yield path.relative_to(folder).as_posix()


def _digest_of(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def replace_folder(files: Files, folder: Path) -> None:
    """Write files as a folder, all or nothing: beside it first, then renamed into its place.

    Raises InputError if the folder holds something else, or cannot be written.
    """
    check_replaceable(folder)
    listing = "".join(f"{hashlib.sha256(files[name].content).hexdigest()}  {name}\n" for name in sorted(files))
    listed = {**files, FILE_LIST: EmittedFile(listing.encode())}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            fresh, old = Path(scratch) / "new", Path(scratch) / "old"
            fresh.mkdir(mode=0o755)
            write_files(listed, fresh)
            _swap(fresh, folder, old)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: cannot be written ({error})") from None


def _swap(fresh: Path, folder: Path, old: Path) -> None:
    """Put a new folder in the place of an old one; whatever interrupts it, one of the two stands there."""
    try:
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise


def write_files(files: Files, folder: Path) -> None:
    """Write emitted files under a folder, with their executable bits."""
    for relative, file in sorted(files.items()):
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)


CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029]")


def one_line(text: str, what: str) -> str:
    """Return the text unchanged; InputError if it holds a line break or another control character.

    Emitted files hold one setting a line, so no user string may end a line.
    """
    found = CONTROL_CHARACTERS.search(text)
    if found:
        raise InputError(
            f"{what}: {text!r} holds the control character {found.group()!r}; launch files cannot carry it"
        )
    return text


def quote_bash(text: str, what: str = "value") -> str:
    """Return the text as one bash word that expands to itself: no splitting, no substitution, no globbing."""
    return shlex.quote(one_line(text, what))


def slug(text: str) -> str:
    """Return a name safe in file names, job names and metrics: ASCII letters, digits, `.`, `_` and `-`, at most 64."""
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    return kept[:64] or "plan"
