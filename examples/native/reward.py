"""The reward of examples/native/copy.yaml: the share of digits that stand where they should."""

from __future__ import annotations

from typing import Any


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """Return 1 for the right digits and nothing else, less for each wrong, missing or further one."""
    answer = solution_str.replace(" ", "")
    right = sum(given == wanted for given, wanted in zip(answer, ground_truth, strict=False))
    return right / max(len(answer), len(ground_truth))
