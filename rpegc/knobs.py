"""The Bayesian loop over coupled knobs: chunks of a stream, share of a split tail, staleness.

The integer program finds the best plan at given knobs, for a deterministic machine. What knobs are worth under real
spread only the simulator says: the mean of a maximum is not the maximum of means. So a trial solves the program at its
knobs and simulates the plan; Optuna's TPE (arXiv 2304.11127) proposes the next. Every trial has its own seed, by its
number, so that a loop that is continued from its storage proposes what an uninterrupted one would have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rpegc.errors import InputError
from rpegc.plan import Plan

CHUNKS = (1, 2, 4, 8)
TAIL_SHARES = (0.0, 0.125, 0.25)


@dataclass(frozen=True, slots=True, order=True)
class Knobs:
    """What couples stages and is no layout; 1 chunk, no tail and staleness 0 are what a plain plan has."""

    chunks: int = 1
    tail_share: float = 0.0
    staleness: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best plan, the knobs it has, and the simulated period of every trial (None: no plan at these knobs)."""

    plan: Plan
    knobs: Knobs
    trials: tuple[tuple[Knobs, float | None], ...]


Evaluate = Callable[[Knobs], Plan | None]
"""The best plan at given knobs, simulated; None if there is none."""


def knobs_of(plan: Plan) -> Knobs:
    """Return the knobs of a plan."""
    return knobs_in(plan.knobs)


def knobs_in(named: Mapping[str, int | float | str]) -> Knobs:
    """Return the knobs in a plan's list of them. A tail alone makes its readers wait in parts: that is no chunk."""
    tail = float(named.get("tail_share", 0.0))
    return Knobs(int(named.get("chunks", 1)), tail, int(named.get("staleness", 0)))


def domain_of(structures: frozenset[str], max_staleness: int) -> dict[str, tuple[int | float, ...]]:
    """Return the values of each knob that a target can express and the user allows."""
    return {
        "chunks": CHUNKS if "stream-rollout" in structures else (1,),
        "tail_share": TAIL_SHARES if "split-tail" in structures else (0.0,),
        "staleness": tuple(range(max_staleness + 1)) if "bounded-asynchrony" in structures else (0,),
    }


def worth_it(start: Plan, minimum_gain: float) -> Callable[[Plan], bool]:
    """Return a check that a plan with a class of rewrites that the start has not gains enough to win."""

    def acceptable(plan: Plan) -> bool:
        classes = {rewrite.semantics for rewrite in plan.rewrites} - {rewrite.semantics for rewrite in start.rewrites}
        gain = 0.0 if classes <= {"exact"} else minimum_gain
        return _simulated(plan) <= (1.0 - gain) * _simulated(start)

    return acceptable


def tune(
    start: Plan,
    evaluate: Evaluate,
    domain: Mapping[str, tuple[int | float, ...]],
    trials: int,
    seed: int,
    storage: Path | None = None,
    acceptable: Callable[[Plan], bool] = lambda _: True,
) -> Tuned:
    """Try knobs of `domain` (by field of `Knobs`), `trials` in all; never returns a plan worse than `start`.

    With a `storage` (a file of Optuna's journal), trials that it holds count and are not run again. Plans that are not
    `acceptable` (a stale one that gains too little) never win. Raises InputError for a storage that cannot be used.
    """
    import optuna  # imported late: only those who tune wait for it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = _study(storage, _study_name(start, domain, seed))
    plans: dict[Knobs, Plan | None] = {knobs_of(start): start}
    seen: list[tuple[Knobs, float | None]] = []
    best = start
    for number in range(trials):
        done = [t for t in study.get_trials(deepcopy=False) if t.number == number and t.state.is_finished()]
        if done:
            seen.append((knobs_in(done[0].params), done[0].value if done[0].value is not None else None))
            continue
        study.sampler = optuna.samplers.TPESampler(seed=seed + number, n_startup_trials=min(4, trials))
        trial = study.ask()
        knobs = knobs_in({name: trial.suggest_categorical(name, values) for name, values in domain.items()})
        if knobs not in plans:
            plans[knobs] = evaluate(knobs)
        plan = plans[knobs]
        value = None if plan is None or plan.simulated_period_s is None else plan.simulated_period_s
        study.tell(trial, value, state=None if value is not None else optuna.trial.TrialState.FAIL)
        seen.append((knobs, value))
    for knobs, value in sorted((known for known in seen if known[1] is not None), key=lambda known: known[1] or 0.0):
        if value is None or value >= _simulated(best):
            break
        if knobs not in plans:  # from the storage: solved again, which gives the same plan
            plans[knobs] = evaluate(knobs)
        plan = plans[knobs]
        if plan is not None and _simulated(plan) < _simulated(best) and acceptable(plan):
            best = plan
            break
    return Tuned(best, knobs_of(best), tuple(seen))


def _simulated(plan: Plan) -> float:
    return plan.period_s if plan.simulated_period_s is None else plan.simulated_period_s


def _study_name(start: Plan, domain: Mapping[str, tuple[int | float, ...]], seed: int) -> str:
    """Return a name that only searches of one pipeline, from one plan and over equal knobs, have in common."""
    asked = (json.dumps(start.pipeline, sort_keys=True, default=str), start.target, start.search.space, start.period_s)
    return "knobs-" + hashlib.sha256(repr((asked, sorted(domain.items()), seed)).encode()).hexdigest()[:16]


def _study(storage: Path | None, name: str):  # type: ignore[no-untyped-def]
    import optuna

    if storage is None:
        return optuna.create_study()
    try:
        backend = optuna.storages.journal.JournalFileBackend(str(storage))
        journal = optuna.storages.JournalStorage(backend)
        return optuna.create_study(storage=journal, study_name=name, load_if_exists=True)
    except (OSError, ValueError, KeyError, TypeError, AssertionError, AttributeError, IndexError) as error:
        raise InputError(f"{storage}: cannot be used as Optuna's storage ({type(error).__name__}: {error})") from None
