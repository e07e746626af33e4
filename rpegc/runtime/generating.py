"""The generate stage: which prompts a replica takes in a step, what it carries over, how it gives them away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rpegc.runtime.decode import Decoder, Request, Sampling
from rpegc.runtime.prompts import PromptFile
from rpegc.runtime.rows import Rows


@dataclass(frozen=True, slots=True)
class Share:
    """A replica's share of a step: `groups` prompts of `samples` samples each, given away in `waves`.

    `carries` is how many further groups it begins that may end in a later step (partial rollout; 0 = none), `bound` the
    staleness that no row may exceed.
    """

    replica: int
    groups: int
    samples: int
    waves: int
    seed: int
    carries: int = 0
    bound: int = 0


@dataclass(slots=True)
class Replica:
    """One replica of the engine, with the groups that it carries over to the next step."""

    decoder: Decoder
    prompts: PromptFile
    share: Share
    sampling: Sampling
    prompts_per_step: int
    taken: int = 0
    carried: list[Request] = field(default_factory=list)

    def waves(self, step: int, version: int) -> Iterator[tuple[int, Rows]]:
        """Generate a step with the current weights; yield each wave as soon as its groups are whole.

        Rows that would be too old in the next step (`late`) are part of this one, whoever ends first.
        """
        share, requests = self.share, self._requests(step, version)
        members: dict[int, list[Request]] = {}
        for request in requests:
            members.setdefault(request.group, []).append(request)
        late = {r.group for r in requests if share.carries and r.version <= step - share.bound}
        chosen: list[int] = []

        def choose(group: int) -> None:
            others = sum(1 for other in chosen if other not in late)
            if group in chosen or not all(request.done for request in members[group]):
                return
            if group in late or others < share.groups - len(late):
                chosen.append(group)

        for group in members:
            choose(group)
        waiting = [request for request in requests if not request.done]
        ended = iter(self.decoder.generate(waiting, self.sampling, lambda _: len(chosen) >= share.groups))
        given, rows = 0, Rows()
        for wave in range(share.waves):
            last = share.groups if wave == share.waves - 1 else share.groups // share.waves * (wave + 1)
            while given < last:
                if given == len(chosen):
                    choose(next(ended).group)
                    continue
                group = chosen[given]
                base = self._first_row(step, group, given)
                for sample, request in enumerate(members[group]):
                    _put(rows, base + sample, request, self.prompts.at(request.place, share.seed).number)
                given += 1
            yield wave, rows
            rows = Rows()
        self.carried = [request for request in requests if request.group not in chosen]

    def _requests(self, step: int, version: int) -> list[Request]:
        """Return the carried-over rows, then those of new prompts."""
        share = self.share
        if not share.carries:
            self.taken = step * share.groups
        # Rows that are as old as they may be when they begin cannot wait for a later step.
        further = share.carries if version > step - share.bound else 0
        fresh = max(share.groups + further - len({request.group for request in self.carried}), 0)
        requests = list(self.carried)
        for number in range(self.taken, self.taken + fresh):
            turn, position = divmod(number, share.groups)
            place = turn * self.prompts_per_step + share.replica * share.groups + position
            prompt = self.prompts.at(place, share.seed)
            for sample in range(share.samples):
                requests.append(
                    Request(
                        row=place * share.samples + sample,
                        prompt=prompt.tokens,
                        seed=(share.seed, place, sample),
                        group=place,
                        version=version,
                        place=place,
                    )
                )
        self.taken += fresh
        return requests

    def _first_row(self, step: int, place: int, given: int) -> int:
        """Return the first row of a group: by its place in the step or, where steps mix places, in order of ending."""
        share = self.share
        if share.carries:
            return (share.replica * share.groups + given) * share.samples
        return (place - step * self.prompts_per_step) * share.samples

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold to go on."""
        return {"taken": self.taken, "carried": [asdict(request) for request in self.carried]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.taken = int(state["taken"])
        self.carried = [
            Request(**{**request, "prompt": tuple(request["prompt"]), "seed": tuple(request["seed"])})
            for request in state["carried"]
        ]


def _put(rows: Rows, row: int, request: Request, number: int) -> None:
    rows.put(
        row,
        tokens=np.asarray([*request.prompt, *request.tokens], dtype=np.int64),
        prompt_length=[len(request.prompt)],
        behaviour_logprobs=np.asarray(request.logprobs, dtype=np.float32),
        version=[request.version],
        place=[request.place],
        prompt_number=[number],
    )
