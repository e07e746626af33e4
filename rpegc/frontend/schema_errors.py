"""Turn what pydantic found into one `InputError`: where, the rule with its values, what is allowed, what was meant."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rpegc.errors import InputError, guess
from rpegc.frontend.schema_fields import PATTERN_WORDS, Block
from rpegc.frontend.yaml_source import YamlDocument, printable

_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a block of `key: value` lines",
    "model_type": "a block of `key: value` lines",
}
_SCALAR_TYPES = frozenset({"int_type", "float_type", "string_type", "bool_type"})


def first_error(problem: ValidationError, root: type[Block], document: YamlDocument) -> InputError:
    """Return the first offence in file order.

    Missing keys come last: a misspelt key is both unknown and missing, and the misspelling is the better news.
    """
    errors = problem.errors(include_url=False)
    by_path: dict[tuple[Any, ...], list[Any]] = {}
    for error in errors:
        by_path.setdefault(_path_in_file(error, document), []).append(error)

    def file_order(path: tuple[Any, ...]) -> tuple[bool, int, int]:
        place = document.key_position(path)
        return by_path[path][0]["type"] == "missing", place.line, place.column

    path = min(by_path, key=file_order)
    return _translate(path, by_path[path], root, document)


def _path_in_file(error: Any, document: YamlDocument) -> tuple[Any, ...]:
    """Drop the parts that pydantic adds to a path (names of union members, marks of keys)."""
    path = tuple(error["loc"])
    if error["type"] == "missing":
        return path
    while path and not document.has(path):
        path = path[:-1]
    return path


def _translate(path: tuple[Any, ...], errors: list[Any], root: type[Block], document: YamlDocument) -> InputError:
    error, kind = errors[0], errors[0]["type"]
    name, shown = dotted(path), _show(error["input"])
    field, annotation, owner = _schema_at(root, path)
    if kind == "extra_forbidden":
        return _unknown_key(path, owner, document)
    if kind == "missing" and isinstance(path[-1], int):
        parent = path[:-1]
        wanted = len(get_args(_schema_at(root, parent)[1]))
        return InputError(
            f"`{dotted(parent)}` is {shown}, but must be a list of {wanted} values", document.value_position(parent)
        )
    if kind == "missing":
        meaning = field.description if field else None
        return InputError(f"`{name}` is missing", document.key_position(path[:-1]), meaning)
    if error["loc"][-1:] == ("[key]",):
        rule = PATTERN_WORDS.get(error.get("ctx", {}).get("pattern", ""), "shorter")
        return InputError(
            f"`{printable(str(path[-1]))}` cannot be a name here: must be {rule}", document.key_position(path)
        )
    position = document.value_position(path)
    if not path:
        return InputError(f"the file is {shown}, but must be a block of `key: value` lines", position)
    if len(errors) > 1 and len({tuple(e["loc"]) for e in errors}) > 1:
        error, kind = _most_telling(errors)
    if kind == "literal_error":
        allowed = [str(value) for value in _literals(annotation)]
        return InputError(
            f"`{name}` is {shown}, which is not one of its values", position, guess(str(error["input"]), allowed)
        )
    return InputError(f"`{name}` is {shown}, but must be {_demand(error, kind)}", position)


def _demand(error: Any, kind: str) -> str:
    context = error.get("ctx") or {}
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        bound = context[key]
        return f"{words} {bound if isinstance(bound, int) else format(bound, 'g')}"
    if kind in ("too_long", "too_short"):
        return f"a list of {context.get('max_length', context.get('min_length'))} values"
    if kind == "string_pattern_mismatch":
        return PATTERN_WORDS.get(context.get("pattern", ""), "written otherwise")
    if kind == "string_too_long":
        return f"at most {context['max_length']} characters long"
    if kind == "finite_number":
        return "a finite number"
    if kind in ("int_parsing_size", "int_from_float"):
        return "a whole number of bearable size"
    return _TYPES.get(kind, printable(str(error["msg"]), 120))


def _most_telling(errors: list[Any]) -> tuple[Any, str]:
    """Among the refusals of a union's members, prefer the one about the value to those about its type."""
    for error in errors:
        if error["type"] not in _SCALAR_TYPES:
            return error, str(error["type"])
    return {**errors[0], "msg": "a single text, number, or true or false"}, "union"


def _unknown_key(path: tuple[Any, ...], owner: type[Block] | None, document: YamlDocument) -> InputError:
    key = printable(str(path[-1]))
    where = f" in `{dotted(path[:-1])}`" if len(path) > 1 else ""
    return InputError(f"unknown key `{key}`{where}", document.key_position(path), guess(key, keys_of(owner)))


def keys_of(block: type[Block] | None) -> list[str]:
    """Return the keys that a block accepts, as a user writes them."""
    return [field.alias or name for name, field in block.model_fields.items()] if block else []


def dotted(path: tuple[Any, ...]) -> str:
    """Return a key path as a reader would write it: `training.clip[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{printable(str(part))}" if text else printable(str(part))
    return text


def _show(value: Any) -> str:
    if value is None or value == "":
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a block"
    if isinstance(value, tuple | list):
        return f"a list of {len(value)}"
    return f"the text `{printable(value)}`" if isinstance(value, str) else f"`{printable(str(value))}`"


def _schema_at(root: type[Block], path: tuple[Any, ...]) -> tuple[FieldInfo | None, Any, type[Block] | None]:
    """Follow a path through the schema: the field, its annotation, the block that holds the last key."""
    field: FieldInfo | None = None
    annotation: Any = root
    owner: type[Block] | None = None
    for part in path:
        owner = None
        annotation = _strip_optional(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Block):
            owner = annotation
            named = {info.alias or name: info for name, info in annotation.model_fields.items()}
            field = named.get(str(part))
            annotation = field.annotation if field else None
        elif get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        elif get_origin(annotation) is tuple:
            annotation = get_args(annotation)[0]
        else:
            return None, None, None
    return field, _strip_optional(annotation), owner


def _strip_optional(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return members[0] if len(members) == 1 else annotation
    return annotation


def _literals(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()
