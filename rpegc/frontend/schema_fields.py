"""The kinds of value that a pipeline file holds, each with its limits; the base class of all blocks."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_COUNT = 100_000_000
"""Upper limit of every count, and of the sequences of a step: tokens of a step stay far inside 64-bit integers."""

TEXT_PATTERN = r"^[^\p{C}\p{Zl}\p{Zp}]+$"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
IDENTIFIER_PATTERN = r"^[a-z][a-z0-9_]{0,63}$"
VALUE_PATTERN = r"^(?:[a-z][a-z0-9_]{0,63}|weights\([a-z][a-z0-9_]{0,63}\))$"
FUNCTION_PATTERN = r"^[^\p{C}\p{Zl}\p{Zp}:]+\.py:[A-Za-z_][A-Za-z0-9_]*$"
OVERRIDE_PATTERN = r"^\+{0,2}[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*$"

PATTERN_WORDS = {
    TEXT_PATTERN: "a text on one line, without control characters",
    NAME_PATTERN: "1 to 64 letters, digits, `.`, `_` or `-`, the first a letter or digit (it names the output folder)",
    IDENTIFIER_PATTERN: "small letters, digits and `_`, the first a letter, at most 64",
    VALUE_PATTERN: "a word of small letters, digits and `_`, or `weights(ROLE)`",
    FUNCTION_PATTERN: "`path/to/file.py:function`",
    OVERRIDE_PATTERN: "dotted identifiers, such as `trainer.logger`, with `+` before one that the target's files lack",
}
"""What each pattern demands, in words: a message never shows a regular expression."""

Text = Annotated[str, StringConstraints(max_length=4096, pattern=TEXT_PATTERN)]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER_PATTERN)]
ValueName = Annotated[str, StringConstraints(pattern=VALUE_PATTERN)]
FunctionReference = Annotated[str, StringConstraints(max_length=4096, pattern=FUNCTION_PATTERN)]
OverrideKey = Annotated[str, StringConstraints(max_length=256, pattern=OVERRIDE_PATTERN)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]


class Block(BaseModel):
    """A block of the pipeline file: immutable, no unknown keys, no silent conversion, only finite numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
