"""The documentation agrees with the code: snippets load, keys, defaults and limits are those of the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from rpegc.cli import app
from rpegc.compiler import Options, setting_of, structures
from rpegc.errors import InputError
from rpegc.frontend.load import pipeline_from_text
from rpegc.frontend.presets import preset_names, stage_recipes
from rpegc.frontend.schema import pipeline_json_schema
from rpegc.ir.graph import Op
from rpegc.target import ENGINE_FIELDS, SHARDED_FIELDS

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


SNIPPETS = blocks(REFERENCE, "yaml") + blocks(README, "yaml")
COMPLETE = [text for text in SNIPPETS if re.match(r"(#.*\n|\s*\n)*name:", text)]
PARTIAL = [text for text in SNIPPETS if text not in COMPLETE]


def in_place_of(base: str, snippet: str) -> str:
    """Put a snippet's top-level keys in the place of those of a complete file."""
    keys = re.findall(r"^(\w+):", snippet, re.MULTILINE)
    for key in keys:
        base = re.sub(rf"^{key}:.*\n(?:[ #].*\n)*", "", base, flags=re.MULTILINE)
    return base + snippet


@pytest.mark.parametrize("text", COMPLETE)
def test_a_complete_snippet_loads_and_has_a_structure(text: str) -> None:
    pipeline = pipeline_from_text(text)
    assert structures(setting_of(pipeline, Options()))


@pytest.mark.parametrize("text", PARTIAL)
def test_a_partial_snippet_loads_in_place_of_its_keys(text: str) -> None:
    pipeline = pipeline_from_text(in_place_of(COMPLETE[0], text))
    assert structures(setting_of(pipeline, Options()))


def test_the_reference_has_snippets_of_both_kinds() -> None:
    assert COMPLETE
    assert len(PARTIAL) >= 3


def test_the_error_shown_is_the_one_that_a_user_sees() -> None:
    (shown,) = blocks(REFERENCE, "text")
    wrong = COMPLETE[0].replace("minibatches_per_step: 4", "minibatches_per_step: 5")
    with pytest.raises(InputError) as caught:
        pipeline_from_text(wrong, "pipeline.yaml")
    assert shown == f"error: {caught.value}\n"


def sections() -> dict[str, dict[str, list[str]]]:
    """Return the table rows of each section by the words of their first cell: the cells after it."""
    found: dict[str, dict[str, list[str]]] = {}
    for part in re.split(r"^## ", REFERENCE, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        rows = found.setdefault(title.strip(), {})
        for line in body.splitlines():
            if line.startswith("| `"):
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                for word in re.findall(r"`([^`]+)`", cells[0]):
                    rows[word] = cells[1:]
    return found


def schema_keys() -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """Yield every key of the schema: section, key (dotted inside a section), its schema, whether it is required."""
    schema = pipeline_json_schema()

    def walk(block: dict[str, Any], section: str, prefix: str) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
        for key, value in block["properties"].items():
            yield section, prefix + key, value, key in block.get("required", ())
            for name in dict.fromkeys(re.findall(r"#/\$defs/(\w+)", str(value))):
                # Both length keys have one table, which names the keys of a length without a prefix.
                below = prefix if section != "Top level" and name == "LengthsSpec" else f"{prefix}{key}."
                inner = (key, "") if section == "Top level" else (section, below)
                yield from walk(schema["$defs"][name], *inner)

    yield from walk(schema, "Top level", "")


KEYS = list({(section, key): (section, key, value, need) for section, key, value, need in schema_keys()}.values())


def plain(value: object) -> str:
    """Write a default as the tables do."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def constraints(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of a key that are not null."""
    return [one for one in value.get("anyOf", [value]) if one.get("type") != "null"]


@pytest.mark.parametrize(("section", "key", "value", "need"), KEYS, ids=[f"{row[0]}.{row[1]}" for row in KEYS])
def test_a_key_of_the_schema_has_its_row(section: str, key: str, value: dict[str, Any], need: bool) -> None:
    rows = sections()[section]
    assert key in rows, f"docs/pipeline.md, section {section}, has no row for `{key}`"
    kind, default, what = rows[key]
    assert (default == "required") == need
    if not need and not isinstance(value.get("default"), dict) and "default" in value:
        assert default == ("none" if value["default"] is None else f"`{plain(value['default'])}`")
    for one in constraints(value):
        for word in one.get("enum", [one["const"]] if "const" in one else []):
            assert f"`{word}`" in kind + default + what, f"`{key}` may be `{word}`"
        if one.get("type") in ("integer", "number"):
            assert limits_of(kind) == {name: one[name] for name in LIMITS if name in one}, f"limits of `{key}`"


LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
NAMED = {
    "count": {"minimum": 1, "maximum": 100_000_000},
    "positive": {"exclusiveMinimum": 0, "maximum": 1e12},
    "non-negative": {"minimum": 0, "maximum": 1e12},
}


def limits_of(kind: str) -> dict[str, float]:
    """Read the limits that the type column states."""
    if kind in NAMED:
        return dict(NAMED[kind])
    between = re.fullmatch(r"(?:whole number,|number from) ([\d,]+) to ([\d,]+)", kind)
    if between:
        low, high = (int(number.replace(",", "")) for number in between.groups())
        return {"minimum": low, "maximum": high}
    below = re.fullmatch(r"number from (\d+), below (\d+)", kind)
    assert below, f"the type `{kind}` states no limits that this test can read"
    return {"minimum": int(below.group(1)), "exclusiveMaximum": int(below.group(2))}


@pytest.mark.parametrize("preset", preset_names())
def test_a_stage_of_a_preset_is_described_with_its_values(preset: str) -> None:
    roles = {"dpo": ["reference"], "distill": ["reward", "teacher"]}.get(preset, ["reference", "reward"])
    roles += ["critic"] * (preset == "ppo")
    models = ", ".join(["actor: {config: Qwen/Qwen3-8B}", *(f"{role}: {{like: actor}}" for role in roles)])
    coefficient = 0.0 if preset == "distill" else 0.1
    lines = f"algorithm: {preset}\nmodels: {{{models}}}\ntraining: {{kl: {{coefficient: {coefficient}}}}}\n"
    text = in_place_of(COMPLETE[0], lines)
    if preset == "dpo":
        text = text.replace("samples_per_prompt: 16", "samples_per_prompt: 2").replace("reward: {", "# {")
    described = sections()["Presets"]
    assert preset in described, f"docs/pipeline.md has no row for the preset {preset}"
    for recipe in stage_recipes(pipeline_from_text(text).spec):
        does, uses, makes, _ = described[recipe.name]
        assert does.startswith(str(recipe.op))
        assert f"`{recipe.model}`" in does or not recipe.model
        assert ("scalar" in does) == (dict(recipe.attributes).get("head") == "scalar")
        assert {*recipe.inputs, *recipe.optional} <= set(re.findall(r"`(\w+)`", uses))
        assert set(recipe.outputs) <= set(re.findall(r"`(\w+)`", makes))
        assert ("weights" in makes) == (recipe.op is Op.TRAIN)


def test_every_layout_field_is_described() -> None:
    body = REFERENCE.partition("## fix\n")[2].partition("\n## ")[0]
    sharded, _, engine = body.partition("| generate |")
    assert [field for field in SHARDED_FIELDS if field != "dp" and f"`{field}`" not in sharded] == []
    assert [field for field in ENGINE_FIELDS if f"`{field}`" not in engine] == []
    assert "`dp` and `replicas`" in engine


def verbs() -> list[str]:
    return [command.name or "" for command in app.registered_commands]


@pytest.mark.parametrize("verb", verbs())
def test_a_verb_is_documented_with_its_options(verb: str) -> None:
    rows = [line for line in COMMANDS.splitlines() if re.match(rf"\| `rpegc {verb}[` ]", line)]
    assert len(rows) == 1, f"docs/commands.md has no row for `rpegc {verb}`"
    group: Any = typer.main.get_command(app)
    for parameter in group.commands[verb].params:
        for option in (name for name in parameter.opts if name.startswith("-") and name != "--help"):
            assert f"`{option}`" in rows[0], f"{verb} {option}"


def test_no_command_is_documented_that_does_not_exist() -> None:
    assert re.findall(r"^\| `rpegc (\w+)", COMMANDS, re.MULTILINE) == verbs()
