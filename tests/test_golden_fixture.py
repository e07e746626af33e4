"""A golden text that is absent or differs fails; nothing passes by default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def test_a_missing_golden_fails_and_shows_the_text(
    golden: Callable[[str, str], None], pytestconfig: pytest.Config
) -> None:
    if pytestconfig.getoption("--update-golden"):
        pytest.skip("--update-golden would write the missing file")
    with pytest.raises(pytest.fail.Exception, match="the text itself"):
        golden("frontend/absent.txt", "the text itself")


def test_a_different_golden_fails(golden: Callable[[str, str], None], pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        pytest.skip("--update-golden would write the different text")
    assert (Path(__file__).parent / "golden" / "frontend" / "messages.txt").exists()
    with pytest.raises(AssertionError, match=r"frontend/messages\.txt"):
        golden("frontend/messages.txt", "other")
