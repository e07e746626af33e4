"""Generation runs ahead of training, by no more versions than the plan allows; every sample says how old it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import curve, lines, run_all
from native_model import make
from native_plans import apart, bind

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("asynchrony")
    make(folder)
    return folder


def spans(run: Path) -> dict[tuple[str, int], tuple[float, float]]:
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    return {(e["name"], e["args"]["step"]): (e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"}


def test_staleness_is_recorded_for_every_sample_and_within_the_bound(folder, tmp_path):
    plans = {
        "one": bind(folder, apart(1, 1), staleness=1, seconds={"period": 1.5}, steps=6),
        "three": bind(folder, apart(1, 1), staleness=3, seconds={"period": 1.0}, steps=7),
        "partial": bind(folder, apart(1, 1), partial=True, steps=6),
    }
    run_all(2, plans, tmp_path)
    for name, bound in (("one", 1), ("three", 3), ("partial", 1)):
        ledger = lines(tmp_path / name, "ledger")
        assert [len(record["staleness"]) for record in ledger] == [16] * len(ledger)
        assert max(max(record["staleness"]) for record in ledger) == bound
        assert curve(tmp_path / name, "staleness_max") == [max(record["staleness"]) for record in ledger]
        places = [place for record in ledger for place in record["places"]]
        assert len(set(places)) == len(places)  # no prompt twice
        if name != "partial":
            assert places == list(range(4 * len(ledger)))
    # One version behind from the second step on, and generation of a step began before the update before it ended.
    assert [set(record["staleness"]) for record in lines(tmp_path / "one", "ledger")] == [{0}] + [{1}] * 5
    found = spans(tmp_path / "one")
    assert all(found["rollout", step + 1][0] < found["update_actor", step][1] for step in range(5))
