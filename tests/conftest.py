"""Fixtures for all tests: golden texts, and a small pipeline file to edit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN_FOLDER = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a check that a text equals `tests/golden/NAME`; a missing file fails and shows the text."""

    def check(name: str, text: str) -> None:
        path = GOLDEN_FOLDER / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists():
            pytest.fail(f"there is no golden file {name}; if this text is right, run with --update-golden:\n{text}")
        assert text == path.read_text(encoding="utf-8"), f"differs from tests/golden/{name} (--update-golden rewrites)"

    return check


@pytest.fixture
def pipeline_text() -> str:
    """The smallest sensible GRPO pipeline; tests replace parts of it."""
    return (
        "name: small\n"
        "algorithm: grpo\n"
        "models:\n"
        "  actor: {config: Qwen/Qwen3-8B}\n"
        "workload:\n"
        "  prompts_per_step: 64\n"
        "  samples_per_prompt: 8\n"
        "  prompt_tokens: {mean: 100, max: 512}\n"
        "  response_tokens: {mean: 1000, p99: 4000, max: 8192}\n"
        "  minibatches_per_step: 2\n"
        "reward: {seconds_per_sample: 0.01}\n"
        "cluster: {hardware: gh200-alps, nodes: 2}\n"
    )
