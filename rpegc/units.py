"""Bytes, seconds and counts, parsed once at the border and printed one way everywhere. SI inside."""

from __future__ import annotations

GB = 1e9
GIB = float(1 << 30)
MIB = float(1 << 20)
TFLOP = 1e12
MICROSECOND = 1e-6
MILLISECOND = 1e-3
HOUR = 3600.0


def format_bytes(count: float) -> str:
    """Print bytes in binary units with three significant digits."""
    for unit, size in (("TiB", GIB * 1024), ("GiB", GIB), ("MiB", MIB), ("KiB", 1024.0)):
        if abs(count) >= size:
            return f"{count / size:.3g} {unit}" if abs(count) < 1000 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """Print seconds with three significant digits, in hours or minutes where a person would."""
    if abs(seconds) >= 2 * HOUR:
        return f"{seconds / HOUR:.3g} h"
    if abs(seconds) >= 600:
        return f"{seconds / 60:.3g} min"
    if abs(seconds) >= 1 or seconds == 0:
        return f"{seconds:.3g} s" if abs(seconds) < 100 else f"{seconds:.0f} s"
    if abs(seconds) >= MILLISECOND:
        return f"{seconds / MILLISECOND:.3g} ms"
    return f"{seconds / MICROSECOND:.3g} us"


def format_count(count: float) -> str:
    """Print a large count (parameters, tokens) with a letter: 8.19 B, 131 k."""
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.3g}"
