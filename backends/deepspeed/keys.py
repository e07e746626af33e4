"""The keys that TRL, DeepSpeed and PEFT read: DeepSpeed itself passes over a key that it does not know."""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib import resources

from backends.deepspeed.capabilities import VERSION

PARTS = ("deepspeed", "grpo", "lora", "vllm")
UNLISTED = ("vllm",)
"""Parts whose keys are not listed: vLLM's version is the user's, and `vllm serve` refuses what it does not know."""

FLAG = re.compile(r"vllm\.[a-z][a-z0-9_]*")


@cache
def known_keys() -> frozenset[str]:
    """Return the dotted keys that are read; a key that ends in `.*` has free keys below it."""
    text = (resources.files("backends.deepspeed") / f"keys-{VERSION}.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def problem_of(key: str) -> tuple[str, str | None] | None:
    """Return why an override may not name a key, and a hint; None if something reads it."""
    part = key.split(".")[0]
    if part not in PARTS or "." not in key:
        return f"a key starts with {', '.join(f'`{name}.`' for name in PARTS)}", _close(key)
    if part in UNLISTED:
        return None if FLAG.fullmatch(key) else ("a flag of `vllm serve` is `vllm.` and words joined by `_`", None)
    known = known_keys()
    if key in known or any(key.startswith(free[:-1]) for free in known if free.endswith(".*")):
        return None
    if any(other.startswith(f"{key}.") for other in known):
        return f"{key} is a part with keys of its own", f"write `{key}.KEY: ...`"
    return f"nothing reads {key}", _close(key)


def _close(key: str) -> str | None:
    close = difflib.get_close_matches(key, known_keys(), n=1, cutoff=0.6)
    last = [other for other in sorted(known_keys()) if other.rpartition(".")[2] == key.rpartition(".")[2]]
    found = [*last[:1], *close]
    return f"did you mean `{found[0]}`?" if found else None
