"""Read lengths from the rollouts of a run: JSON lines, a sample a line, as verl dumps them or as a log counts them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rpegc.errors import InputError, SourcePosition, guess
from rpegc.frontend.schema_fields import MAX_COUNT
from rpegc.frontend.yaml_source import printable, read_text

MAX_ROLLOUT_BYTES = 512 << 20
SUFFIXES = (".jsonl", ".ndjson")

BYTES_PER_TOKEN = 3.6
"""UTF-8 bytes of text per token, where a dump holds texts alone. Provenance: assumed; English prose and mathematics of
the Llama 3 and Qwen tokenizers lie between 3 and 4.5."""

_COUNTS = {
    "response_tokens": ("response_length", "response_tokens", "output_tokens", "completion_tokens", "gen_tokens"),
    "prompt_tokens": ("prompt_length", "prompt_tokens", "input_tokens"),
}
"""Keys whose value is a number of tokens."""

_IDENTIFIERS = {
    "response_tokens": ("response_ids", "output_ids", "responses", "completion_ids"),
    "prompt_tokens": ("prompt_ids", "input_ids", "prompts"),
}
"""Keys whose value is a list of token identifiers."""

_TEXTS = {"response_tokens": ("output", "response", "completion"), "prompt_tokens": ("input", "prompt")}
"""Keys whose value is text; verl's `trainer.rollout_data_dir` writes `input` and `output`."""


def read_rollouts(path: Path, shown: str, key: str, asked_at: SourcePosition | None) -> tuple[tuple[int, int], ...]:
    """Return the (tokens, count) pairs of a file of samples, sorted by tokens.

    `key` is the workload key that asks: "response_tokens" or "prompt_tokens". A count is taken before a list of
    identifiers, that before a text (bytes over `BYTES_PER_TOKEN`). Raises `InputError`: at `asked_at` when the file
    cannot be read or holds no sample, at the file's own line when a line is wrong.
    """
    try:
        text = read_text(path, MAX_ROLLOUT_BYTES)
    except InputError as problem:
        raise InputError(problem.message, problem.position or asked_at) from None
    counted: Counter[int] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            counted[_tokens(line, key, SourcePosition(shown, number, 1, printable(line, 120)))] += 1
    if not counted:
        raise InputError(f"{printable(shown, 200)} holds no samples", asked_at)
    return tuple(sorted(counted.items()))


def _tokens(line: str, key: str, position: SourcePosition) -> int:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError("a line of rollouts must be one JSON object", position) from None
    if not isinstance(sample, dict):
        raise InputError('a line of rollouts must be one JSON object, such as {"response_length": 812}', position)
    found = _first(sample, _COUNTS[key])
    if found is not None:
        if (
            isinstance(found, bool)
            or not isinstance(found, int | float)
            or found != found
            or not 0 <= found <= MAX_COUNT
        ):
            raise InputError(f"a number of tokens must lie between 0 and {MAX_COUNT}", position)
        return max(int(found), 1)
    identifiers = _first(sample, _IDENTIFIERS[key])
    if isinstance(identifiers, list):
        return max(len(identifiers), 1)
    text = _first(sample, _TEXTS[key])
    if isinstance(text, str):
        return max(round(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN), 1)
    wanted = _COUNTS[key] + _IDENTIFIERS[key] + _TEXTS[key]
    close = [guess(name, wanted) for name in sample if isinstance(name, str)]
    rule = f"a line must have one of the keys {', '.join(wanted)}"
    raise InputError(rule, position, next((hint for hint in close if hint), ""))


def _first(sample: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((sample[name] for name in names if sample.get(name) is not None), None)
