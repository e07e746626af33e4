"""The verdict on a given plan in a terminal: fits or not, what decides it, and the memory of every stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rpegc.plan import MemoryPhase
from rpegc.units import format_bytes, format_seconds

SHOWN_TERMS = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is shown of one plan; `undecided` is the reason where nothing could be priced, and all else is empty."""

    name: str
    undecided: str = ""
    fits: bool = False
    where: str = ""
    phase: str = ""
    term: str = ""
    total_bytes: float = 0.0
    capacity_bytes: float = 0.0
    fit_probability: float = 0.0
    seconds: tuple[tuple[str, float], ...] = ()
    memory: tuple[MemoryPhase, ...] = ()
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the verdict on each plan: one line each for several, with stages and terms for a single one."""
    for one in verdicts:
        if one.undecided:
            yield f"{one.name}: undecided: {one.undecided}"
            continue
        yield f"{one.name}: {_sentence(one)}"
        if len(verdicts) == 1:
            yield from _details(one)


def _sentence(one: Verdict) -> str:
    space = one.capacity_bytes - one.total_bytes
    margin = f"{format_bytes(space)} left" if space >= 0 else f"{format_bytes(-space)} too much"
    total = f"{format_bytes(one.total_bytes)} of {format_bytes(one.capacity_bytes)}"
    where = "a GPU" if one.where == "device" else "a node's host memory"
    known = f"fit probability {one.fit_probability:.2f}"
    verdict = "fits" if one.fits else "does not fit"
    return f"{verdict}: {one.phase} needs {total} of {where} ({margin}), most of it {one.term}; {known}"


def _details(one: Verdict) -> Iterator[str]:
    seconds = dict(one.seconds)
    for phase in one.memory:
        largest = sorted(phase.device_bytes.items(), key=lambda term: (-term[1], term[0]))[:SHOWN_TERMS]
        terms = ", ".join(f"{name} {format_bytes(amount)}" for name, amount in largest)
        time = format_seconds(seconds[phase.phase]) if seconds[phase.phase] < float("inf") else "never ends"
        host = format_bytes(phase.host_total_bytes)
        yield f"  {phase.phase}: {time}; GPU {format_bytes(phase.device_total_bytes)} ({terms}); host {host} a node"
    for word in one.assumed:
        yield f"  assumed: {word}"
    if one.ignored:
        yield f"  ignored, neither memory nor time depends on them here: {', '.join(one.ignored)}"
