"""Overrides out of a shell script, read as text: simple assignments are followed, nothing is ever executed.

Understood: `NAME=value`, `${NAME}`, `${NAME:-default}`, `$((integer arithmetic))`, arrays of words and `"${ARRAY[@]}"`,
comments, continued lines. What stands in the branch of an `if` counts as not run, what stands in its `else` as run.
A command substitution, or a variable that the environment would supply, leaves an override *unresolved*.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rpegc.errors import InputError

LARGEST_SCRIPT = 262_144
"""Characters; longer text is no launch script."""
LARGEST_VALUE = 8_192
DEEPEST_EXPANSION = 16

OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w]*(?:[./][\w@-]+)*)=(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"(?:export\s+|local\s+|readonly\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:(:?[-=])([^{}]*))?\}|(\w+))")
_ARRAY = re.compile(r'"?\$\{(\w+)\[[@*]\]\}"?')
_ARITHMETIC = re.compile(r"\$\(\(([^()$]*(?:\([^()$]*\)[^()$]*)*)\)\)")


@dataclass(slots=True)
class Overrides:
    """Settings by key in the order of the script, those that text alone does not decide, and words before an `=`."""

    values: dict[str, str] = field(default_factory=dict)
    unresolved: dict[str, str] = field(default_factory=dict)


def read_overrides(text: str, groups: frozenset[str]) -> Overrides:
    """Return the `key=value` words of a script or of a list of overrides; a later word wins over an earlier one.

    `groups` are the first parts of keys that count as settings. Raises InputError for text that is too long, or whose
    quotes do not close.
    """
    if len(text) > LARGEST_SCRIPT:
        raise InputError(f"the script has {len(text)} characters, more than the {LARGEST_SCRIPT} of a launch script")
    script = _Script()
    found = Overrides()
    for line in _executed(_logical_lines(text)):
        for word in script.words(line):
            _take(word, groups, found)
    return found


def _take(word: str, groups: frozenset[str], found: Overrides) -> None:
    if word.startswith("--config-name="):
        word = "config-name=" + word.partition("=")[2]
    match = OVERRIDE.fullmatch(word)
    if match is None:
        return
    key, value = match[2], match[3].strip()
    if re.split(r"[./]", key)[0] not in groups:
        return
    found.values.pop(key, None)
    found.unresolved.pop(key, None)
    if match[1] == "~":
        return
    if "$" in value or "`" in value or len(value) > LARGEST_VALUE:
        found.unresolved[key] = value[:80]
    else:
        found.values[key] = value


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines with continuations, open quotes and open array brackets joined, and without comments."""
    held = ""
    for raw in text.replace("\r\n", "\n").replace("\\\n", " ").split("\n"):
        line = held + ("\n" if held else "") + raw
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote that closes on a later line
            held = line
            continue
        joined = " ".join(words)
        if re.match(r"\s*(?:declare\s+-\w+\s+|local\s+)?\w+\+?=\(", line) and not joined.rstrip().endswith(")"):
            held = line
            continue
        held = ""
        if words:
            yield line
    if held:
        raise InputError("a quote or a bracket of the script is never closed", None, held.strip()[:80])


def _executed(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines that count as run: outside of branches, and in the `else` of an `if`."""
    taken: list[bool] = []
    for line in lines:
        first = line.split()[0].rstrip(";")
        if first == "if":
            if not line.rstrip().endswith(("fi", "fi;")):
                taken.append(False)
            continue
        if first in ("elif", "else", "fi") and taken:
            taken[-1] = first == "else"
            if first == "fi":
                taken.pop()
            continue
        if all(taken):
            yield line


class _Script:
    """Variables and arrays as far as the text has been read."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {}

    def words(self, line: str) -> list[str]:
        """Return the words of a command, expanded; remember an assignment instead, and return the words of none."""
        array = re.match(r"\s*(?:declare\s+-\w+\s+|local\s+)?(\w+)(\+?)=\((.*)\)[^)]*$", line, re.DOTALL)
        if array and "$((" not in line.split("(", 1)[0] + "(":
            words = self._expanded(array[3])
            before = self.arrays.get(array[1], []) if array[2] else []
            self.arrays[array[1]] = (before + words)[:LARGEST_VALUE]
            return []
        assignment = _ASSIGNMENT.fullmatch(line.strip())
        if assignment:
            value = self._expanded(assignment[2])
            if len(value) <= 1:
                self.variables[assignment[1]] = value[0] if value else ""
                return []
        return self._expanded(line)

    def _expanded(self, text: str) -> list[str]:
        protected = self._substituted(text)
        words: list[str] = []
        for word in shlex.split(protected, comments=True):
            whole = _ARRAY.fullmatch(word)
            words += self.arrays.get(whole[1], []) if whole else [word]
        return words

    def _substituted(self, text: str) -> str:
        for _ in range(DEEPEST_EXPANSION):
            before = text
            text = _VARIABLE.sub(self._value, text)
            text = _ARITHMETIC.sub(self._calculated, text)
            if text == before or len(text) > LARGEST_SCRIPT:
                break
        return text

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[4]
        value = self.variables.get(name)
        if value is None or (value == "" and (match[2] or "").startswith(":")):
            return match[0] if match[2] is None else match[3]
        return value if len(value) <= LARGEST_VALUE else match[0]

    def _calculated(self, match: re.Match[str]) -> str:
        """Return the value of integer arithmetic; the text itself where it is anything else."""
        try:
            return str(_integer(ast.parse(match[1].strip(), mode="eval").body, self.variables))
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
            return match[0]


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _integer(node: ast.expr, names: Mapping[str, str]) -> int:
    """Return the value of integer arithmetic; raises ValueError for anything else."""
    if isinstance(node, ast.Name):
        return int(names[node.id]) if re.fullmatch(r"-?\d{1,15}", names.get(node.id, "")) else _refuse()
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 1 << 53:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_integer(node.operand, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value = _OPERATIONS[type(node.op)](_integer(node.left, names), _integer(node.right, names))
        if abs(value) < 1 << 53:
            return value
    return _refuse()


def _refuse() -> int:
    raise ValueError("not integer arithmetic")
