"""Read a histogram of lengths from a CSV file with the columns `tokens,count`."""

from __future__ import annotations

from pathlib import Path

from rpegc.errors import InputError, SourcePosition
from rpegc.frontend.schema_fields import MAX_COUNT
from rpegc.frontend.yaml_source import printable, read_text

MAX_HISTOGRAM_BYTES = 8 << 20
HEADER = ["tokens", "count"]


def read_histogram(path: Path, shown: str, asked_at: SourcePosition | None) -> tuple[tuple[int, int], ...]:
    """Return the (tokens, count) pairs of a file, sorted by tokens.

    `shown` is the file as the user named it, `asked_at` the place that named it. Raises `InputError`: at `asked_at`
    when the file cannot be read, at the file's own line when a row is wrong.
    """
    try:
        text = read_text(path, MAX_HISTOGRAM_BYTES)
    except InputError as problem:
        raise InputError(problem.message, problem.position or asked_at) from None
    pairs: dict[int, int] = {}
    header_seen = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        position = SourcePosition(shown, number, 1, printable(line, 120))
        if not header_seen:
            if cells != HEADER:
                raise InputError("the first line of a histogram must be `tokens,count`", position)
            header_seen = True
            continue
        tokens, count = _row(cells, position)
        if tokens in pairs:
            raise InputError(f"{tokens} tokens stand twice", position)
        pairs[tokens] = count
    if not any(pairs.values()):
        raise InputError(f"{printable(shown, 200)} counts no lengths", asked_at)
    return tuple(sorted(pairs.items()))


def _row(cells: list[str], position: SourcePosition) -> tuple[int, int]:
    numbers = [int(cell) if cell.isascii() and cell.isdigit() and len(cell) < 19 else -1 for cell in cells]
    if len(numbers) != 2 or not (1 <= numbers[0] <= MAX_COUNT) or numbers[1] < 0:
        rule = f"a row must be two whole numbers, `tokens,count`, with tokens from 1 to {MAX_COUNT} and count from 0"
        raise InputError(rule, position)
    return numbers[0], numbers[1]
