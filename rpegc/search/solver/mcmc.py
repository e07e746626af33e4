"""The baseline of ReaL (arXiv 2406.14088), repaired: Markov chain Monte Carlo over (mesh, layout) of every call.

A state is one candidate a stage: mesh-tree node, mesh class, row. A move draws a stage and another of its candidates
uniformly over all pairs; the other stages on that node follow to the node's new shape with their fastest rows, tied
stages follow with the tied key. The energy is the makespan of a list schedule, three times that where memory does not
suffice. A worse state is taken with probability exp(-beta floor(dE / 100 ms)).

Repaired: one unit of time throughout (the published code mixes milliseconds and microseconds, so that every move is
accepted), beta 0.05 instead of 0.001, the greedy plan as start, dominated candidates left out instead of all beyond the
first thousand, and the plan returned is the best that fits. Meshes within meshes are left out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from rpegc.search.solver import greedy
from rpegc.search.solver.moves import State, Tables
from rpegc.search.solver.problem import Choice, Limit, Problem, Solution, Status
from rpegc.search.solver.prune import normalise, prune

OUT_OF_MEMORY = 3
"""Factor on the energy of a state that does not fit, as in ReaL."""
GRAIN_MS = 100
"""Milliseconds of one step of energy, as in ReaL."""


@dataclass(slots=True)
class Chain:
    """A solver: `moves` tries of one chain with this `beta`; `stop(tries, best_ms)` ends it earlier, if given.

    After a solution `moved` counts the moves that were accepted.
    """

    moves: int = 20_000
    beta: float = 0.05
    stop: Callable[[int, int | None], bool] | None = None
    moved: int = field(default=0)

    def __call__(self, problem: Problem, limit: Limit, cutoff: int | None = None) -> Solution:
        """Return the best plan that the chain met; proves nothing (`bound` 0). The seed is that of `limit`."""
        problem.check()
        problem = prune(normalise(problem))
        first = greedy.solve(problem, limit, cutoff)
        tables = Tables(problem)
        state = tables.start(first.choice)
        best = None if first.period is None else (first.choice, first.period)
        if state is not None:
            best = self._walk(tables, state, limit.seed, best, cutoff)
        if best is None or best[0] is None:
            return Solution(None, None, 0, Status.LIMIT, ("period",))
        return Solution(*best, 0, Status.LIMIT, ("period",), {"moves": float(self.moved)})

    def _walk(
        self,
        tables: Tables,
        state: State,
        seed: int,
        best: tuple[Choice | None, Fraction] | None,
        cutoff: int | None,
    ) -> tuple[Choice | None, Fraction] | None:
        draw = random.Random(seed)
        energy = self._energy(tables, state)
        for tries in range(self.moves):
            ceiling = math.ceil(best[1]) if best is not None else cutoff
            if self.stop is not None and self.stop(tries, None if best is None else math.ceil(best[1])):
                break
            moved = tables.moved(state, draw)
            if moved is None:
                continue
            other = self._energy(tables, moved)
            if other > energy and draw.random() >= math.exp(-self.beta * ((other - energy) // GRAIN_MS)):
                continue
            state, energy = moved, other
            self.moved += 1
            if tables.fits(state) and (ceiling is None or energy < ceiling):
                best = tables.plan(state)
        return best

    @staticmethod
    def _energy(tables: Tables, state: State) -> int:
        return tables.makespan(state) * (1 if tables.fits(state) else OUT_OF_MEMORY)
