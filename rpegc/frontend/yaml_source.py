"""YAML read safely, with the line and column of every key and value.

The parser's events are turned into a small tree of our own: nothing is constructed from tags, nothing is expanded
before it was counted, and scalars follow the core schema of YAML 1.2 (`1e-6` is a number, `yes` is a text).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from rpegc.errors import InputError, SourcePosition

MAX_BYTES = 1 << 20
MAX_DEPTH = 24
MAX_NODES = 5_000
MAX_ALIASES = 100
MAX_NUMBER_CHARACTERS = 40
MAX_LINE_CHARACTERS = 10_000  # the scanner's work on one token grows with the square of its length
MAX_QUOTED_CHARACTERS = 160

PlainScalar = str | int | float | bool | None
KeyPath = Sequence[str | int]

_NULL = re.compile(r"(?:~|null|Null|NULL|)")
_BOOLEAN = re.compile(r"(?:true|True|TRUE|false|False|FALSE)")
_INTEGER = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))")
# What YAML may not hold at all, and the line breaks of old YAML versions that editors do not count as lines.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\ufeff")


@dataclass(frozen=True, slots=True)
class YamlNode:
    """One value and where it stands. `size` counts the nodes below it, with aliases written out.

    Exactly one of `scalar`, `items`, `entries` is meaningful, by `kind` ("scalar", "sequence", "mapping"); an entry
    maps a key to the key's own position and its value.
    """

    kind: str
    position: SourcePosition
    scalar: PlainScalar = None
    items: tuple[YamlNode, ...] = ()
    entries: Mapping[str, tuple[SourcePosition, YamlNode]] | None = None
    size: int = 1

    def plain(self) -> Any:
        """Return scalars, tuples and dicts without positions."""
        if self.kind == "mapping":
            return {key: node.plain() for key, (_, node) in (self.entries or {}).items()}
        if self.kind == "sequence":
            return tuple(node.plain() for node in self.items)
        return self.scalar


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A whole file: its root and a lookup from key paths to positions."""

    root: YamlNode

    def _deepest(self, path: KeyPath) -> tuple[SourcePosition | None, YamlNode, int]:
        """Follow a path as far as the file has it: position of the last key, the node, steps taken."""
        key_position, node = None, self.root
        for steps, part in enumerate(path):
            if node.kind == "mapping" and str(part) in (node.entries or {}):
                key_position, node = (node.entries or {})[str(part)]
            elif node.kind == "sequence" and isinstance(part, int) and 0 <= part < len(node.items):
                key_position, node = node.items[part].position, node.items[part]
            else:
                return key_position, node, steps
        return key_position, node, len(path)

    def key_position(self, path: KeyPath) -> SourcePosition:
        """Return where a key stands; of a key that the file does not have, where its nearest parent stands."""
        key_position, node, _ = self._deepest(path)
        return key_position or node.position

    def value_position(self, path: KeyPath) -> SourcePosition:
        """Return where a value stands if it is a single scalar of the file, else where its key stands."""
        key_position, node, steps = self._deepest(path)
        if steps == len(path) and node.kind == "scalar" and (node.scalar is not None or key_position is None):
            return node.position
        return key_position or node.position

    def has(self, path: KeyPath) -> bool:
        """Whether the file has a value at this path."""
        return self._deepest(path)[2] == len(path)


def read_yaml(path: Path) -> YamlDocument:
    """Read one YAML document from a regular file of at most 1 MiB.

    Raises `InputError` for a missing, unreadable, empty, oversized or non-UTF-8 file, and for all that `parse_yaml`
    refuses.
    """
    return parse_yaml(read_text(path, MAX_BYTES), str(path))


def read_text(path: Path, max_bytes: int) -> str:
    """Read a regular UTF-8 file of at most `max_bytes` bytes; a byte order mark is dropped. Raises `InputError`."""
    name = printable(str(path), 200)
    try:
        if path.is_dir():
            raise InputError(f"{name} is a directory, not a file")
        if not path.exists():
            raise InputError(f"{name} does not exist")
        if not path.is_file():
            raise InputError(f"{name} is not a regular file")
        with path.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except (OSError, ValueError) as problem:  # ValueError: a NUL byte in the path
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise InputError(f"{name} cannot be read: {reason}") from None
    if len(content) > max_bytes:
        raise InputError(f"{name} is larger than {max_bytes} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before = content[: problem.start]
        line, column = before.count(b"\n") + 1, problem.start - (before.rfind(b"\n") + 1) + 1
        raise InputError(
            f"byte 0x{content[problem.start]:02x} is not UTF-8", SourcePosition(str(path), line, column)
        ) from None


def parse_yaml(text: str, name: str) -> YamlDocument:
    """Parse a text as one YAML document; `name` is the file's name in messages.

    Raises `InputError` for syntax errors, tags, duplicate or non-scalar keys, merge keys, several documents, an empty
    document, and for more than 24 levels, 5,000 values (aliases written out) or 100 aliases.
    """
    reader = _Reader(text, name)
    forbidden = _FORBIDDEN.search(text)
    if forbidden:
        raise InputError(
            f"the character U+{ord(forbidden.group()):04X} may not stand in a pipeline file",
            reader.position_of_index(forbidden.start()),
        )
    for number, line in enumerate(reader.lines):
        if len(line) > MAX_LINE_CHARACTERS:
            raise InputError(
                f"a line of {len(line)} characters; at most {MAX_LINE_CHARACTERS}", reader.position(number, 0)
            )
    return YamlDocument(reader.read())


def printable(text: str, limit: int = 60) -> str:
    """Return a user's text as one safe, short line: what does not print becomes a replacement character."""
    shown = "".join(character if character.isprintable() else "�" for character in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


class _Reader:
    """Turns the events of one text into nodes; recursion is bounded by MAX_DEPTH."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.lines = re.split(r"\r\n|\n|\r", text)
        self.anchors: dict[str, YamlNode] = {}
        self.open_anchors: list[str] = []
        self.aliases = 0
        self.nodes = 0

    def position(self, line: int, column: int) -> SourcePosition:
        """Build a one-based position from zero-based line and column, quoting the line if it is of bearable length."""
        text = self.lines[line] if line < len(self.lines) else ""
        quoted = printable(text.replace("\t", " "), MAX_QUOTED_CHARACTERS) if column < MAX_QUOTED_CHARACTERS else ""
        return SourcePosition(self.name, line + 1, column + 1, quoted)

    def position_of_index(self, index: int) -> SourcePosition:
        """Build the position of a character of the text."""
        before = re.split(r"\r\n|\n|\r", self.text[:index])
        return self.position(len(before) - 1, len(before[-1]))

    def at(self, event: Any) -> SourcePosition:
        """Return the position at which an event starts."""
        return self.position(event.start_mark.line, event.start_mark.column)

    def events(self) -> Iterator[Any]:
        """Yield the parser's events; its errors become `InputError` with the place that it names."""
        try:
            yield from YAML(typ="safe", pure=True).parse(self.text)
        except MarkedYAMLError as problem:
            mark = problem.problem_mark or problem.context_mark
            detail = " ".join(part for part in (problem.context, problem.problem) if part)
            where = self.position(mark.line, mark.column) if mark else None
            raise InputError(f"not valid YAML: {printable(detail, 200)}", where) from None
        except InputError:
            raise
        except Exception as problem:
            # The parser reads hostile text: whatever it stumbles over, the text is at fault, not the program.
            raise InputError(f"not valid YAML: {printable(str(problem), 200)}", self.position(0, 0)) from None

    def read(self) -> YamlNode:
        """Read the one document."""
        root: YamlNode | None = None
        events = self.events()
        for event in events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                if root is not None:
                    raise InputError("a second document starts here; a pipeline file holds one", self.at(event))
                if event.version or event.tags:
                    raise InputError("%YAML and %TAG directives are not allowed", self.at(event))
                root = self.node(next(events), events, depth=1)
        if root is None or (root.kind == "scalar" and root.scalar is None):
            raise InputError("the file is empty", SourcePosition(self.name, 1, 1))
        return root

    def node(self, event: Any, events: Iterator[Any], depth: int) -> YamlNode:
        """Read the node that an event starts."""
        kind, position = type(event).__name__, self.at(event)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise InputError(f"more than {MAX_NODES} values in one file", position)
        if kind == "AliasEvent":
            return self.alias(str(event.anchor), position)
        if depth > MAX_DEPTH:
            raise InputError(f"nested deeper than {MAX_DEPTH} levels", position)
        if event.tag is not None:
            raise InputError(f"tags such as `{printable(str(event.tag))}` are not allowed", position)
        anchor = str(event.anchor) if event.anchor else ""
        if anchor:
            self.open_anchors.append(anchor)
        if kind == "ScalarEvent":
            node = YamlNode("scalar", position, scalar=self.scalar(event, position))
        elif kind == "SequenceStartEvent":
            node = self.sequence(events, position, depth)
        else:
            node = self.mapping(events, position, depth)
        if anchor:
            self.open_anchors.remove(anchor)
            self.anchors[anchor] = node
        return node

    def alias(self, anchor: str, position: SourcePosition) -> YamlNode:
        """Return the node that an alias names, after counting what it would expand to."""
        if anchor in self.open_anchors:
            raise InputError(f"alias `*{printable(anchor)}` stands inside the value that it repeats", position)
        if anchor not in self.anchors:
            raise InputError(f"alias `*{printable(anchor)}` repeats nothing: no `&{printable(anchor)}` above", position)
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise InputError(f"more than {MAX_ALIASES} aliases", position)
        target = self.anchors[anchor]
        self.nodes += target.size
        if self.nodes > MAX_NODES:
            raise InputError(f"aliases written out give more than {MAX_NODES} values", position)
        return target

    def sequence(self, events: Iterator[Any], position: SourcePosition, depth: int) -> YamlNode:
        """Read the items of a sequence."""
        items = []
        for event in events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            items.append(self.node(event, events, depth + 1))
        return YamlNode("sequence", position, items=tuple(items), size=1 + sum(item.size for item in items))

    def mapping(self, events: Iterator[Any], position: SourcePosition, depth: int) -> YamlNode:
        """Read the entries of a mapping; keys are plain text, each once."""
        entries: dict[str, tuple[SourcePosition, YamlNode]] = {}
        size = 1
        for event in events:
            if type(event).__name__ == "MappingEndEvent":
                break
            key_position = self.at(event)
            if type(event).__name__ != "ScalarEvent" or event.tag is not None:
                raise InputError("a key must be a plain word", key_position)
            key = str(event.value)
            if key == "<<" and event.style is None:
                raise InputError("merge keys `<<` are not allowed; write the keys out", key_position)
            if key in entries:
                earlier = entries[key][0]
                raise InputError(f"key `{printable(key)}` stands twice: first in line {earlier.line}", key_position)
            value = self.node(next(events), events, depth + 1)
            entries[key] = (key_position, value)
            size += 1 + value.size
        return YamlNode("mapping", position, entries=entries, size=size)

    def scalar(self, event: Any, position: SourcePosition) -> PlainScalar:
        """Resolve a scalar by the core schema of YAML 1.2; quoted scalars are texts."""
        text = str(event.value)
        if event.style is not None:
            return text
        if _NULL.fullmatch(text):
            return None
        if _BOOLEAN.fullmatch(text):
            return text.lower() == "true"
        if _NOT_FINITE.fullmatch(text):
            return float(text.replace(".", "").lower())
        if not (_INTEGER.fullmatch(text) or _FLOAT.fullmatch(text)):
            return text
        if len(text) > MAX_NUMBER_CHARACTERS:
            raise InputError(f"a number of {len(text)} characters; at most {MAX_NUMBER_CHARACTERS}", position)
        if _INTEGER.fullmatch(text):
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        return float(text)
