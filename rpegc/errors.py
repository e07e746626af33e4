"""Errors sorted by what the reader can do about them.

| class | the reader can | exit code |
|---|---|---|
| `InputError` | correct the input | 2 |
| `MissingPiece` | install or supply something | 2 |
| `NothingFits` | change the request by the named amount | 3 |
| anything else | nothing: it is our fault | 4 |
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A place in a user's file: the file as the user named it, one-based line and column, the line's text."""

    file: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class RpegcError(Exception):
    """Base of every error that is reported without a traceback."""

    exit_code = 4


class InputError(RpegcError):
    """The input is wrong: says where, quotes the line, states the rule with its values, guesses what was meant."""

    exit_code = 2

    def __init__(self, message: str, position: SourcePosition | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"{self.position}: {self.message}" if self.position else self.message]
        if self.position and self.position.text.strip():
            gutter = f"{self.position.line:>5} | "
            lines.append(gutter + self.position.text)
            lines.append(" " * (len(gutter) - 2) + "| " + " " * (self.position.column - 1) + "^")
        if self.hint:
            lines.append(f"      = {self.hint}")
        return "\n".join(lines)


class MissingPiece(RpegcError):
    """Something outside the input is absent: says what to install or supply."""

    exit_code = 2


class NothingFits(RpegcError):
    """No plan satisfies the limits: names the term that breaks it, the smallest change that would fit, a conflict.

    `conflict` lists the fewest of the user's own constraints that cannot hold together, where they are to blame.
    """

    exit_code = 3

    def __init__(self, message: str, term: str = "", smallest_change: str = "", conflict: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.term = term
        self.smallest_change = smallest_change
        self.conflict = conflict

    def __str__(self) -> str:
        lines = [self.message]
        if self.term:
            lines.append(f"  breaks it: {self.term}")
        if self.smallest_change:
            lines.append(f"  smallest change that fits: {self.smallest_change}")
        if self.conflict:
            lines.append(f"  smallest set that cannot hold together: {'; '.join(self.conflict)}")
        return "\n".join(lines)


def guess(word: str, allowed: Iterable[str]) -> str | None:
    """Return a sentence that lists what is allowed and, if one is close, what was probably meant."""
    names = sorted(set(allowed))
    close = difflib.get_close_matches(word, names, n=5, cutoff=0.6)
    close.sort(key=lambda name: sorted(name) != sorted(word))  # two letters the wrong way round are the likeliest slip
    listing = ", ".join(names) if len(names) <= 40 else f"{len(names)} names; see `rpegc list`"
    if close:
        return f"did you mean `{close[0]}`? allowed: {listing}"
    return f"allowed: {listing}" if names else None
