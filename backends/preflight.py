"""What the preflight of every backend looks for: settings that are missing, and the user's files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from backends.request import MISSING, PipelineRequest
from rpegc.emit import one_line


def missing_of(texts: Mapping[str, str]) -> list[str]:
    """Return the keys of the pipeline that emitted texts have a marker in place of."""
    pattern = re.compile(rf"{MISSING}\.([a-z0-9_.]+)")
    return sorted({match[1] for text in texts.values() for match in pattern.finditer(text)})


def input_files(request: PipelineRequest, reward_path: str) -> list[dict[str, str]]:
    """Return the user's files that must be there: data, model folders, the reward function's file."""
    files = [(f"data.{which}", request.get(f"data.{which}")) for which in ("train", "val")]
    for role in request.get("models", {}):
        for kind in ("weights", "tokenizer"):
            path = request.get(f"models.{role}.{kind}")
            # Anything else may be the name of a model on a hub.
            files.append((f"models.{role}.{kind}", path if path and str(path).startswith(("/", "~", ".")) else None))
    files.append(("reward.function", reward_path or None))
    return [
        {"what": what, "path": one_line(str(path), what)} for what, path in files if path and "://" not in str(path)
    ]
