"""RPEG as text: one line a stage, one an edge; `parse_graph(print_graph(g)) == g`, exactly and for every graph.

    rpeg NAME
    mode NAME
    engine NAME
    tree 0 0 0
    stage NAME = OP of ROLE (attribute = scalar, ...) on NODE NODE {field: scalar scalar; ...}
    edge SOURCE -> TARGET: VALUE distance 1 chunks 4
    rewrite PASS SEMANTICS "where"

What is empty or has its usual value is left out. A name that is not a plain word is written as a JSON string; string
scalars always are. `#` starts a comment. Floats print as Python prints them, so they read back to the same bits.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from rpegc.errors import InputError, SourcePosition, guess
from rpegc.ir.graph import Edge, Graph, Op, Rewrite, Scalar, Stage

_WORD = r"[A-Za-z_](?:[A-Za-z0-9_./]|-(?!>))*"
_TOKEN = re.compile(
    r'(?P<blank>\s+|\#.*)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<symbol>->|[=:;,(){}])'
    r"|(?P<number>-inf|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<word>" + _WORD + ")"
)
_SCALAR_WORDS: dict[str, Scalar] = {"true": True, "false": False, "inf": float("inf"), "nan": float("nan")}
_DECLARATIONS = ("rpeg", "mode", "engine", "tree", "stage", "edge", "rewrite")


# --- printer ----------------------------------------------------------------------------------------------------------


def print_graph(graph: Graph) -> str:
    """Print a graph as text that `parse_graph` reads back to an equal graph."""
    blocks = [
        [f"rpeg {_name(graph.name)}", *_header(graph)],
        [_stage_line(stage) for stage in graph.stages],
        [_edge_line(edge) for edge in graph.edges],
        [f"rewrite {_name(r.name)} {_name(r.semantics)} {_quoted(r.where)}" for r in graph.rewrites],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _header(graph: Graph) -> list[str]:
    lines = [f"mode {_name(graph.mode)}"] if graph.mode else []
    lines += [f"engine {_name(graph.engine)}"] if graph.engine else []
    return lines + ([f"tree {_numbers(graph.tree)}"] if graph.tree else [])


def _stage_line(stage: Stage) -> str:
    parts = [f"stage {_name(stage.name)} = {stage.op.value}"]
    if stage.model:
        parts.append(f"of {_name(stage.model)}")
    if stage.attributes:
        parts.append("(" + ", ".join(f"{_name(name)} = {_scalar(value)}" for name, value in stage.attributes) + ")")
    if stage.meshes:
        parts.append(f"on {_numbers(stage.meshes)}")
    if stage.layouts:
        fields = (": ".join((_name(field), " ".join(map(_scalar, values)))) for field, values in stage.layouts)
        parts.append("{" + "; ".join(fields) + "}")
    return " ".join(parts)


def _edge_line(edge: Edge) -> str:
    line = f"edge {_name(edge.source)} -> {_name(edge.target)}: {_name(edge.value)}"
    if edge.distance != 0:
        line += f" distance {edge.distance}"
    if edge.chunks != 1:
        line += f" chunks {edge.chunks}"
    return line


def _numbers(values: tuple[int, ...]) -> str:
    return " ".join(map(str, values))


def _name(text: str) -> str:
    return text if re.fullmatch(_WORD, text) else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else repr(value)


# --- parser -----------------------------------------------------------------------------------------------------------


def parse_graph(text: str, file: str = "<rpeg>") -> Graph:
    """Read a graph from its text; stages remember their place in `file`.

    Raises `InputError` with the position of the first wrong token.
    """
    name, mode, engine = "", "", ""
    tree: tuple[int, ...] = ()
    stages: list[Stage] = []
    edges: list[Edge] = []
    rewrites: list[Rewrite] = []
    seen: set[str] = set()
    for number, text_line in enumerate(text.split("\n"), start=1):
        line = _Line(file, number, text_line)
        if line.at_end():
            continue
        keyword = line.keyword(_DECLARATIONS, once=seen)
        if keyword == "rpeg":
            name = line.name("the graph's name")
        elif keyword == "mode":
            mode = line.name("a mode")
        elif keyword == "engine":
            engine = line.name("an engine")
        elif keyword == "tree":
            tree = line.integers()
        elif keyword == "stage":
            stages.append(_parse_stage(line))
        elif keyword == "edge":
            edges.append(_parse_edge(line))
        else:
            rewrites.append(Rewrite(line.name("a pass"), line.name("its semantics"), line.name("where it fired")))
        line.end()
    if "rpeg" not in seen:
        raise InputError("an RPEG text starts with `rpeg NAME`", SourcePosition(file, 1, 1, text.split("\n")[0]))
    return Graph(name, tuple(stages), tuple(edges), tree, mode, tuple(rewrites), engine)


def _parse_stage(line: _Line) -> Stage:
    position = line.position()
    name = line.name("a stage's name")
    line.symbol("=")
    op = line.op()
    model = line.name("a role") if line.accept("of") else ""
    attributes: list[tuple[str, Scalar]] = []
    if line.accept("("):
        while True:
            attribute = line.name("an attribute")
            line.symbol("=")
            attributes.append((attribute, line.scalar()))
            if not line.accept(","):
                break
        line.symbol(")")
    meshes = line.integers() if line.accept("on") else ()
    layouts: list[tuple[str, tuple[Scalar, ...]]] = []
    if line.accept("{"):
        while True:
            layouts.append(_parse_field(line))
            if not line.accept(";"):
                break
        line.symbol("}")
    return Stage(name, op, model, tuple(attributes), meshes, tuple(layouts), position)


def _parse_field(line: _Line) -> tuple[str, tuple[Scalar, ...]]:
    field = line.name("a layout field")
    line.symbol(":")
    values: list[Scalar] = []
    while not line.at_end() and line.peek() not in (";", "}"):
        values.append(line.scalar())
    return field, tuple(values)


def _parse_edge(line: _Line) -> Edge:
    source = line.name("a stage's name")
    line.symbol("->")
    target = line.name("a stage's name")
    line.symbol(":")
    value = line.name("a value")
    distance = line.integer() if line.accept("distance") else 0
    chunks = line.integer() if line.accept("chunks") else 1
    return Edge(source, target, value, distance, chunks)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


class _Line:
    """The tokens of one line, read from left to right."""

    def __init__(self, file: str, number: int, text: str) -> None:
        self._file, self._number, self._text = file, number, text
        self._tokens: list[_Token] = []
        self._next = 0
        place = 0
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                what = "this string does not end" if text[place] == '"' else f"unexpected character {text[place]!r}"
                raise InputError(what, SourcePosition(file, number, place + 1, text))
            if match.lastgroup != "blank":
                self._tokens.append(_Token(match.lastgroup, match.group(), place + 1))
            place = match.end()

    def position(self) -> SourcePosition:
        """Where the next token starts (one past the line's text at its end)."""
        column = len(self._text) + 1 if self.at_end() else self._tokens[self._next].column
        return SourcePosition(self._file, self._number, column, self._text)

    def at_end(self) -> bool:
        return self._next == len(self._tokens)

    def peek(self) -> str:
        return "" if self.at_end() else self._tokens[self._next].text

    def _take(self, expected: str, *kinds: str) -> _Token:
        if self.at_end() or self._tokens[self._next].kind not in kinds:
            found = "the line ends here" if self.at_end() else f"found `{self.peek()}`"
            raise InputError(f"expected {expected}, {found}", self.position())
        self._next += 1
        return self._tokens[self._next - 1]

    def accept(self, text: str) -> bool:
        """Step over a fixed word or symbol if it comes next."""
        if self.peek() != text:
            return False
        self._next += 1
        return True

    def symbol(self, text: str) -> None:
        if not self.accept(text):
            self._take(f"`{text}`")

    def end(self) -> None:
        if not self.at_end():
            raise InputError(f"expected the end of the line, found `{self.peek()}`", self.position())

    def keyword(self, allowed: tuple[str, ...], once: set[str]) -> str:
        position = self.position()
        word = self._take("a declaration", "word").text
        if word not in allowed:
            raise InputError(f"unknown declaration `{word}`", position, guess(word, allowed))
        if word in once and word in ("rpeg", "mode", "engine", "tree"):
            raise InputError(f"`{word}` may be given only once", position)
        if word != "rpeg" and "rpeg" not in once:
            raise InputError(f"an RPEG text starts with `rpeg NAME`, found `{word}`", position)
        once.add(word)
        return word

    def op(self) -> Op:
        position = self.position()
        word = self._take("an op", "word").text
        allowed = [op.value for op in Op]
        if word not in allowed:
            raise InputError(f"unknown op `{word}`", position, guess(word, allowed))
        return Op(word)

    def name(self, what: str) -> str:
        position = self.position()
        token = self._take(what, "word", "string")
        return token.text if token.kind == "word" else _unquoted(token.text, position)

    def integer(self) -> int:
        position = self.position()
        value = _number(self._take("an integer", "number").text, position)
        if not isinstance(value, int):
            raise InputError(f"expected an integer, found `{value}`", position)
        return value

    def integers(self) -> tuple[int, ...]:
        values = [self.integer()]
        while not self.at_end() and self._tokens[self._next].kind == "number":
            values.append(self.integer())
        return tuple(values)

    def scalar(self) -> Scalar:
        position = self.position()
        token = self._take("a string, number, true or false", "string", "number", "word")
        if token.kind == "string":
            return _unquoted(token.text, position)
        if token.kind == "number":
            return _number(token.text, position)
        if token.text not in _SCALAR_WORDS:
            raise InputError(f"`{token.text}` is not a scalar", position, f'write a string as "{token.text}"')
        return _SCALAR_WORDS[token.text]


def _unquoted(text: str, position: SourcePosition) -> str:
    try:
        return str(json.loads(text))
    except json.JSONDecodeError as error:
        raise InputError(f"{text} is not a JSON string: {error.msg}", position) from None


def _number(text: str, position: SourcePosition) -> int | float:
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        raise InputError(f"the number has too many digits ({len(text)})", position) from None
