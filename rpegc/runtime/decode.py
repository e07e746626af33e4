"""Continuous batching with a key-value cache in plain PyTorch: rows enter as others end, each step adds one token.

Live rows fill the first slots of the cache: a row that ends gives its slot to the last live one, so that attention
reads one block without gaps. The samples of a group share the pass over their prompt. Sampling takes one uniform number
a token from a stream of the row's own, so that neither layout nor batch changes what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rpegc.runtime.model import LanguageModel


@dataclass(slots=True)
class Request:
    """A row to generate: its prompt, the seed of its stream, and what was generated so far (a carried-over row)."""

    row: int
    prompt: tuple[int, ...]
    seed: tuple[int, ...]
    group: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: int = 0
    place: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """Longest response, temperature (0: the likeliest token), tokens that end a response."""

    longest: int
    temperature: float
    ends: frozenset[int]


class Cache:
    """Keys and values of every layer, (slots, K, L, D), and how the current call attends to them."""

    def __init__(self, slots: int, length: int) -> None:
        self.slots, self.length = slots, length
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.filling: list[list[int]] | None = None
        self.places = torch.zeros(0, dtype=torch.long)
        self.visible = torch.zeros(0)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, then attend: causally in a pass over prompts, to all before in a step."""
        if layer not in self.keys:
            shape = (self.slots, key.shape[1], self.length, key.shape[3])
            self.keys[layer], self.values[layer] = key.new_zeros(shape), value.new_zeros(shape)
        keys, values = self.keys[layer], self.values[layer]
        if self.filling is not None:
            width = key.shape[2]
            for line, slots in enumerate(self.filling):
                for slot in slots:
                    keys[slot, :, :width], values[slot, :, :width] = key[line], value[line]
            return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        live = query.shape[0]
        lines = torch.arange(live, device=query.device)
        keys[lines, :, self.places], values[lines, :, self.places] = key[:, :, 0], value[:, :, 0]
        reach = self.visible.shape[-1]
        past = keys[:live, :, :reach], values[:live, :, :reach]
        return scaled_dot_product_attention(query, *past, attn_mask=self.visible, scale=scale, enable_gqa=True)

    def move(self, source: int, target: int) -> None:
        """Copy a slot."""
        for stored in (*self.keys.values(), *self.values.values()):
            stored[target].copy_(stored[source])


class Decoder:
    """Generates rows with one model (or this rank's part of it, under tensor parallelism)."""

    def __init__(self, model: LanguageModel, slots: int, length: int, device: torch.device, tensor_group: Any) -> None:
        self.model, self.slots, self.length = model, slots, length
        self.device, self.tensor_group = device, tensor_group

    def wake(self) -> None:
        """Bring the weights to the device."""
        self.model.to(self.device)

    def sleep(self) -> None:
        """Leave the device to other stages: the weights wait in host memory. The cache never outlives a step."""
        self.model.to("cpu")

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, enough: Callable[[int], bool] = lambda _: False
    ) -> Iterator[Request]:
        """Yield requests as they end; `enough`, asked after each step with the count that ended, stops the rest."""
        cache = Cache(min(self.slots, max(len(requests), 1)), self.length)
        waiting, live, ended = list(requests), list[Request](), 0
        draws = {request.row: _draws(request, sampling) for request in requests}
        with torch.no_grad():
            while waiting or live:
                free = cache.slots - len(live)
                if waiting and free:
                    entering, waiting = waiting[:free], waiting[free:]
                    logits = self._fill(cache, entering, len(live))
                    live += entering
                    self._take(live[-len(entering) :], logits, draws, sampling)
                else:
                    self._take(live, self._step(cache, live), draws, sampling)
                for slot in range(len(live) - 1, -1, -1):
                    if live[slot].done:
                        yield live[slot]
                        ended += 1
                        last = live.pop()
                        if slot < len(live):
                            live[slot] = last
                            cache.move(len(live), slot)
                if enough(ended):
                    return

    def _fill(self, cache: Cache, entering: Sequence[Request], first: int) -> Tensor:
        """Pass over prompts (and what carried-over rows had generated), each once; return next-token logits a row."""
        texts = [(*request.prompt, *request.tokens) for request in entering]
        unique = list(dict.fromkeys(texts))
        lines = [unique.index(text) for text in texts]
        width = max(len(text) for text in unique)
        ids = np.zeros((len(unique), width), dtype=np.int64)
        for line, text in enumerate(unique):
            ids[line, : len(text)] = text
        cache.filling = [[] for _ in unique]
        for slot, line in enumerate(lines):
            cache.filling[line].append(first + slot)
        logits = self._logits(cache, torch.from_numpy(ids), torch.arange(width).expand(len(unique), width))
        ends = torch.tensor([len(text) - 1 for text in unique], device=self.device)
        cache.filling = None
        return logits[torch.arange(len(unique), device=self.device), ends][torch.tensor(lines, device=self.device)]

    def _step(self, cache: Cache, live: Sequence[Request]) -> Tensor:
        places = torch.tensor([len(r.prompt) + len(r.tokens) - 1 for r in live], device=self.device)
        cache.places = places
        reach = int(places.max()) + 1
        cache.visible = (torch.arange(reach, device=self.device) <= places[:, None])[:, None, None, :]
        ids = torch.tensor([[request.tokens[-1]] for request in live])
        return self._logits(cache, ids, places[:, None].cpu())[:, 0]

    def _logits(self, cache: Cache, ids: Tensor, positions: Tensor) -> Tensor:
        logits: Tensor = self.model(ids.to(self.device), positions.to(self.device), cache)
        return logits.float()

    def _take(
        self, rows: Sequence[Request], logits: Tensor, draws: dict[int, np.ndarray[Any, Any]], sampling: Sampling
    ) -> None:
        """Draw the next token of each row and note whether it ends."""
        scaled = logits / sampling.temperature if sampling.temperature else logits
        logprobs = torch.log_softmax(scaled, dim=-1)
        if sampling.temperature:
            places = torch.tensor([draws[r.row][len(r.tokens)] for r in rows], device=self.device)
            sums = torch.cumsum(logprobs.double().exp(), dim=-1)
            chosen = torch.searchsorted(sums, (places * sums[:, -1])[:, None]).clamp(max=logits.shape[-1] - 1)
        else:
            chosen = logits.argmax(dim=-1, keepdim=True)
        if self.tensor_group is not None:  # the ranks of a replica must agree to the bit
            dist.broadcast(chosen, dist.get_global_rank(self.tensor_group, 0), group=self.tensor_group)
        found = logprobs.gather(-1, chosen)[:, 0].tolist()
        for request, token, logprob in zip(rows, chosen[:, 0].tolist(), found, strict=True):
            request.tokens.append(int(token))
            request.logprobs.append(float(logprob))
            request.done = token in sampling.ends or len(request.tokens) >= sampling.longest


def _draws(request: Request, sampling: Sampling) -> np.ndarray[Any, Any]:
    """Return the uniform numbers of a row's tokens; they depend on its seed alone."""
    return np.random.default_rng(request.seed).random(sampling.longest)
