"""Where samples pass between stages: a store of named parts that ranks put and others wait for.

It is bounded: the weights that generation waits for bound how far it runs ahead of training, and a maker forgets what
it put `keep` steps ago. Parts go through the key-value store of the process group; the first rank of a mesh reads them
and sends them to the others of its mesh.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rpegc.runtime.rows import Rows, merged

PIECE_BYTES = 4 * 2**20
"""A value of the store holds at most 8 MiB (libuv backend of TCPStore); parts are cut well below that."""
PATIENCE = timedelta(days=2)
"""How long a rank waits for a part. A rank that dies ends the wait: the launcher stops all others."""


class ValueStore:
    """Parts by stage, step, wave and number. One a thread: a store's connection serves one call at a time."""

    def __init__(self, store: Any, keep: int) -> None:
        self.store, self.keep = store, keep
        self.store.set_timeout(PATIENCE)
        self._put: dict[int, list[str]] = defaultdict(list)

    def put(self, stage: str, step: int, wave: int, part: int, rows: Rows) -> None:
        """Make a part available."""
        self.put_bytes(f"{stage}/{step}/{wave}/{part}", rows.to_bytes(), step)

    def put_bytes(self, key: str, data: bytes, step: int) -> None:
        """Make bytes available under a key, in pieces; the key itself comes last and holds their number."""
        pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)] or [b""]
        for number, piece in enumerate(pieces):
            self.store.set(f"{key}#{number}", piece)
        self.store.set(key, f"{len(pieces)}:{hashlib.sha256(data).hexdigest()}")
        self._put[step] += [key, *(f"{key}#{number}" for number in range(len(pieces)))]
        for old in [step_put for step_put in self._put if step_put < step - self.keep]:
            for name in self._put.pop(old):
                self.store.delete_key(name)

    def get_bytes(self, key: str) -> bytes:
        """Wait for bytes and return them."""
        count, _, digest = self.store.get(key).decode().partition(":")
        data = b"".join(self.store.get(f"{key}#{number}") for number in range(int(count)))
        if hashlib.sha256(data).hexdigest() != digest:
            raise RuntimeError(f"the value {key} arrived damaged")
        return data

    def get(self, stage: str, step: int, wave: int, parts: int) -> Rows:
        """Wait for all parts of a wave and return them as one table."""
        return merged(Rows.from_bytes(self.get_bytes(f"{stage}/{step}/{wave}/{part}")) for part in range(parts))


def share(rows: Rows | None, group: Any, source: int) -> Rows:
    """Send a table from one rank of a CPU group to the others; None stands for it elsewhere."""
    if group is None or dist.get_world_size(group) == 1:
        assert rows is not None, "the only rank has the table"
        return rows
    data = rows.to_bytes() if rows is not None else b""
    size = torch.tensor([len(data)], dtype=torch.long)
    dist.broadcast(size, source, group=group)
    buffer = torch.empty(int(size), dtype=torch.uint8)
    if rows is not None:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(buffer, source, group=group)
    return rows if rows is not None else Rows.from_bytes(buffer.numpy().tobytes())
