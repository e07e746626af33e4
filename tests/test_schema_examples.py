"""The JSON Schema that editors get accepts every example, and points out what the loader would refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from preset_pipelines import preset_text

from rpegc.frontend.presets import preset_names
from rpegc.frontend.schema import pipeline_json_schema
from rpegc.frontend.yaml_source import parse_yaml, read_yaml

jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="a development requirement; an old environment may lack it")

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").rglob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> Any:
    return jsonschema_rs.validator_for(json.loads(json.dumps(pipeline_json_schema())))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid(validator: Any, path: Path) -> None:
    assert [str(error) for error in validator.iter_errors(read_yaml(path).root.plain())] == []


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(validator: Any, name: str) -> None:
    assert validator.is_valid(parse_yaml(preset_text(name), "p.yaml").root.plain())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("algorithm: grpo", "algorithm: gpro"),
        ("prompts_per_step: 256", "prompts_per_step: 25.6"),
        ("nodes: 4", "nodes: 0"),
        ("site: alps", "site: alp"),
        ("name: grpo", "name: 'a/b'"),
        ("reward: {function", "reward: {funktion"),
    ],
)
def test_a_mistake_is_pointed_out(validator: Any, old: str, new: str) -> None:
    text = preset_text("grpo")
    assert old in text
    assert not validator.is_valid(parse_yaml(text.replace(old, new), "p.yaml").root.plain())
