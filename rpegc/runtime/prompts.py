"""Prompts from JSONL or Parquet, in an order that depends on the seed alone: place n of the run is always one prompt.

The *place* of a prompt counts all prompts that the run takes. Step s takes places s * P to (s + 1) * P - 1, so that a
run that stops and resumes neither loses a prompt nor takes one twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rpegc.errors import InputError, MissingPiece


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the file: its number there, its tokens, its text as the model sees it, the expected answer."""

    number: int
    tokens: tuple[int, ...]
    text: str
    answer: Any
    source: str


class PromptFile:
    """All prompts of a file that are short enough, tokenized, in the file's order."""

    def __init__(self, path: Path, prompt_key: str, answer_key: str, tokenizer: Any, longest: int) -> None:
        self.prompts: list[Prompt] = []
        for number, row in enumerate(_read(path)):
            if prompt_key not in row:
                raise InputError(
                    f"{path}: row {number + 1} has no `{prompt_key}`", hint="data.prompt_key names the column"
                )
            text, tokens = _encode(row[prompt_key], tokenizer)
            if 0 < len(tokens) <= longest:
                answer = _value_at(row, answer_key)
                self.prompts.append(Prompt(number, tuple(tokens), text, answer, str(row.get("data_source", path.stem))))
        if not self.prompts:
            raise InputError(f"{path}: holds no prompt of 1 to {longest} tokens")

    def __len__(self) -> int:
        return len(self.prompts)

    def at(self, place: int, seed: int) -> Prompt:
        """Return the prompt at a place of the run: every pass over the file has an order of its own."""
        epoch, position = divmod(place, len(self.prompts))
        return self.prompts[int(_permutation(len(self.prompts), seed, epoch)[position])]


_permutations: dict[tuple[int, int, int], np.ndarray[Any, Any]] = {}


def _permutation(size: int, seed: int, epoch: int) -> np.ndarray[Any, Any]:
    key = (size, seed, epoch)
    if key not in _permutations:
        _permutations.clear()  # one pass at a time is in use
        _permutations[key] = np.random.default_rng((seed, epoch)).permutation(size)
    return _permutations[key]


def _encode(prompt: Any, tokenizer: Any) -> tuple[str, list[int]]:
    """Return the text and the tokens of a prompt: a plain text, or a list of chat messages."""
    if isinstance(prompt, str):
        return prompt, [int(token) for token in tokenizer.encode(prompt, add_special_tokens=True)]
    messages = [dict(message) for message in prompt]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    return text, [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def _value_at(row: Any, key: str) -> Any:
    """Return a column, or the part of a nested one that a dotted key names; None if it is absent."""
    value = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file. Raises InputError or MissingPiece."""
    try:
        if path.suffix in (".jsonl", ".json"):
            lines = path.read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines if line.strip()]
        if path.suffix == ".parquet":
            return _parquet(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as prompts ({error})") from None
    raise InputError(f"{path}: prompts are read from .jsonl and .parquet files")


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingPiece("Parquet prompts need pyarrow: pip install 'rpegc[native]'") from None
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows
