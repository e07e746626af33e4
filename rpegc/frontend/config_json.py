"""A `config.json` as untrusted input: bounded, plain JSON, every error with its place in the file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rpegc.errors import InputError, SourcePosition

MAX_CONFIG_BYTES = 1 << 20
_SHOWN_CHARACTERS = 60
_TEXT_CHARACTERS = 160
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_COLON = re.compile(r"\s*:")
_NOT_FINITE = re.compile(r"[:\[,]\s*(-?(?:NaN|Infinity))")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The facts of one model and where they stand.

    `shown` is the file as the user named it, or the catalogue name. `text` is the file's text ("" for the catalogue).
    `read_for` is the place in the user's pipeline that asked for it. `not_finite` is the first NaN or Infinity of the
    file: no JSON, but written by Python for some models, so that the model is refused by its name first. `inside` is
    the key of the object that `facts` are from, where that is not the whole file.
    """

    shown: str
    facts: Mapping[str, object]
    text: str = ""
    read_for: SourcePosition | None = None
    not_finite: str = ""
    inside: str = ""

    def nested(self, key: str, defaults: Mapping[str, object]) -> ModelConfig:
        """Return the object under `key` as a configuration of its own, whose errors point into it."""
        inner = self.facts[key]
        if not isinstance(inner, dict):
            raise self.error(f"`{key}` must be an object, got {show(inner)}", key)
        return replace(self, facts={**defaults, **inner}, inside=key)

    def with_facts(self, facts: Mapping[str, object]) -> ModelConfig:
        """Return the same file with some facts replaced."""
        return replace(self, facts={**self.facts, **facts})

    def error(self, message: str, key: str | None = None, hint: str | None = None) -> InputError:
        """Build an error that points at `key`, else at a number that is not finite, else at the start of the file."""
        notes = "; ".join(note for note in (hint, _asked(self.read_for)) if note)
        offset = _key_offset(self.text, key, self.inside) if key else None
        if not key and self.not_finite:
            place = _NOT_FINITE.search(self.text)
            offset = place.start(1) if place else None
        return InputError(message, _position(self.shown, self.text, offset or 0), notes or None)


def show(value: object) -> str:
    """Print an untrusted value on one short line, as JSON writes it."""
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def read_config(path: Path, shown: str, read_for: SourcePosition | None) -> ModelConfig:
    """Read a `config.json` of at most 1 MiB; no code in it or beside it is run.

    Raises InputError, with line and column where there is one: unreadable, too large, not UTF-8, not JSON, the same
    key twice, nested too deeply, not an object.
    """
    text = _read_text(path, shown, read_for)
    constants: list[str] = []

    def remember(word: str) -> float:
        constants.append(word)
        return float(word)

    def refuse(message: str, offset: int = 0) -> InputError:
        return InputError(message, _position(shown, text, offset), _asked(read_for))

    try:
        facts = json.loads(text, parse_constant=remember, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise refuse(f"not valid JSON: {error.msg}", error.pos) from None
    except _RepeatedKey as error:
        raise refuse(f"the key {show(error.key)} appears twice in one object", error.offset(text)) from None
    except RecursionError:
        raise refuse("not a model configuration: nested too deeply") from None
    except ValueError:  # Python refuses to convert an integer of more than 4300 digits
        raise refuse("not a model configuration: a number has thousands of digits") from None
    if not isinstance(facts, dict):
        raise refuse(f"a model configuration is a JSON object, got {show(facts)}")
    return ModelConfig(shown, facts, text, read_for, constants[0] if constants else "")


def _read_text(path: Path, shown: str, read_for: SourcePosition | None) -> str:
    try:
        if not path.is_file():  # a device or a pipe could block or never end
            raise InputError(f"`{shown}` is not a regular file", read_for)
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise InputError(
                f"`{shown}` is larger than the {MAX_CONFIG_BYTES} bytes allowed for a config.json", read_for
            )
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"`{shown}` is not UTF-8: byte {error.start} is wrong", read_for) from None
    except OSError as error:
        raise InputError(f"cannot read `{shown}`: {error.strerror}", read_for) from None


class _RepeatedKey(Exception):
    """One object that gives a key twice: the last would win silently."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def offset(self, text: str) -> int:
        """Return where the repetition stands, as well as it can be told from the text alone."""
        return max(text.rfind(json.dumps(self.key)), 0)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    facts: dict[str, object] = {}
    for key, value in pairs:
        if key in facts:
            raise _RepeatedKey(key)
        facts[key] = value
    return facts


def _asked(read_for: SourcePosition | None) -> str | None:
    return f"read because of {read_for}" if read_for else None


def _key_offset(text: str, key: str, inside: str = "") -> int | None:
    """Return the offset of a top-level key, or of one in the object that `inside` names; else of `inside`, or None."""
    depth = 0
    wanted, outer = json.dumps(key), json.dumps(inside)
    entered: int | None = None
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word in "{[":
            depth += 1
        elif word in "}]":
            depth -= 1
            if depth == 1 and entered is not None:
                return entered
        elif not _COLON.match(text, token.end()):
            continue
        elif inside and depth == 1 and word == outer:
            entered = token.start()
        elif word == wanted and depth == (2 if inside else 1) and (not inside or entered is not None):
            return token.start()
    return entered


def _position(shown: str, text: str, offset: int) -> SourcePosition | None:
    if not text:
        return SourcePosition(shown, 1, 1) if shown.endswith(".json") else None
    line_start = text.rfind("\n", 0, offset) + 1
    line = text[line_start:].split("\n", 1)[0].rstrip("\r").replace("\t", " ")
    column = offset - line_start + 1
    # A minified file is one long line: quote it only where the caret stays on the screen.
    quoted = line if len(line) <= _TEXT_CHARACTERS and line.isprintable() else ""
    return SourcePosition(shown, text.count("\n", 0, offset) + 1, column, quoted)
