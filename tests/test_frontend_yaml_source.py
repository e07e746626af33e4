"""YAML as untrusted input: positions are right, and hostile files end in a clear error, soon."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.errors import InputError
from rpegc.frontend.yaml_source import parse_yaml, read_yaml


def refusal(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "p.yaml")
    return caught.value


def test_every_key_and_value_has_its_line_and_column() -> None:
    document = parse_yaml("a: 1\nb:\n  - x\n  - {c: two}\n", "p.yaml")
    assert str(document.key_position(("b",))) == "p.yaml:2:1"
    assert str(document.value_position(("a",))) == "p.yaml:1:4"
    assert str(document.value_position(("b", 0))) == "p.yaml:3:5"
    assert str(document.value_position(("b", 1, "c"))) == "p.yaml:4:9"
    assert document.value_position(("b", 1, "c")).text == "  - {c: two}"


def test_an_absent_key_is_placed_at_its_nearest_parent() -> None:
    document = parse_yaml("a:\n  b: 1\n", "p.yaml")
    assert str(document.key_position(("a", "c", "d"))) == "p.yaml:1:1"
    assert document.has(("a", "b"))
    assert not document.has(("a", "c"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.0e-6", 1e-6),
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("'12'", "12"),
        ('"true"', "true"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    result = parse_yaml(f"k: {text}\n", "p.yaml").root.plain()["k"]
    assert result == value
    assert type(result) is type(value)


def test_an_alias_repeats_its_value() -> None:
    assert parse_yaml("a: &x {mean: 1}\nb: *x\n", "p.yaml").root.plain() == {"a": {"mean": 1}, "b": {"mean": 1}}


def test_a_yaml_bomb_is_refused_before_it_is_written_out() -> None:
    levels = ["l0: &l0 [" + ", ".join(["x"] * 9) + "]"]
    levels += [f"l{i}: &l{i} [" + ", ".join([f"*l{i - 1}"] * 9) + "]" for i in range(1, 10)]
    error = refusal("\n".join(levels))
    assert "aliases written out give more than 5000 values" in error.message
    assert error.position is not None
    assert error.position.line <= 6


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a: 1\na: 2\n", "p.yaml:2:1", "key `a` stands twice: first in line 1"),
        ("a: !!python/object/apply:os.system [ls]\n", "p.yaml:1:4", "tags such as `tag:yaml.org,2002:python/object"),
        ("a: !secret x\n", "p.yaml:1:4", "tags such as"),
        ("? [1, 2]\n: 3\n", "p.yaml:1:3", "a key must be a plain word"),
        ("a: {b: 1}\nc:\n  <<: {d: 1}\n", "p.yaml:3:3", "merge keys"),
        ("a: &x [*x]\n", "p.yaml:1:8", "stands inside the value that it repeats"),
        ("a: *nothing\n", "p.yaml:1:4", "repeats nothing"),
        ("a: 1\n---\nb: 2\n", "p.yaml:2:1", "a second document"),
        ("%YAML 1.1\n---\na: 1\n", "p.yaml:2:1", "directives"),
        ("a: [1, 2\nb: 3\n", "p.yaml:2:2", "not valid YAML"),
        ("a: 'open\n", "p.yaml:2:1", "not valid YAML"),
        ("a:\n\t- b\n", "p.yaml:2:1", "not valid YAML"),
        ("a: b\x07c\n", "p.yaml:1:5", "U+0007"),
        ("ab: x\u2028y\n", "p.yaml:1:6", "U+2028"),
        ("a: " + "9" * 41 + "\n", "p.yaml:1:4", "a number of 41 characters; at most 40"),
        ("[" * 30, "p.yaml:1:25", "nested deeper than 24 levels"),
        ("- x\n" * 5001, "p.yaml:5000:3", "more than 5000 values"),
        ("a: " + "x" * 10_000, "p.yaml:1:1", "a line of 10003 characters"),
        ("a: &x 1\nb: [" + "*x, " * 101 + "]\n", "p.yaml:2:405", "more than 100 aliases"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_what_is_refused_says_where(text: str, place: str, message: str) -> None:
    error = refusal(text)
    assert message in error.message
    assert str(error.position) == place


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~\n"])
def test_an_empty_file_is_called_empty(text: str) -> None:
    assert refusal(text).message == "the file is empty"


def test_the_quoted_line_cannot_rewrite_the_terminal() -> None:
    error = refusal("name: \u202eabc\nname: 2\n")
    assert "\u202e" not in str(refusal("name: 1\nname: \u202eabc\n"))
    assert "\u202e" not in str(error)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nname: caf\xe9\n")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"# " + b"x" * (1 << 20))
    cases = {
        tmp_path / "absent.yaml": "does not exist",
        tmp_path: "is a directory, not a file",
        Path("/dev/null"): "is not a regular file",
        latin: "byte 0xe9 is not UTF-8",
        large: "is larger than 1048576 bytes",
        Path("nul\0byte"): "",
        tmp_path / ("x" * 5000): "",
    }
    for path, message in cases.items():
        with pytest.raises(InputError) as caught:
            read_yaml(path)
        assert message in caught.value.message
    with pytest.raises(InputError) as caught:
        read_yaml(latin)
    assert str(caught.value.position) == f"{latin}:2:10"


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(path).root.plain() == {"a": 1}


PIECES = [
    *"ab:-?[]{},&*!|>'\"%@`# \n\t~0.e<=\\",
    "---\n",
    "...",
    "<<: ",
    "&a ",
    "*a",
    "!!",
    "%YAML 1.2\n",
    "\r",
    "|-\n",
    ": ",
]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InputError):  # any other exception is a failure
        assert parse_yaml(text, "p.yaml").root.plain() is not None
