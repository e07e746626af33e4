"""Write the errors of `rpegc validate` into README.md and docs/model.md, between their marks: `make measured-table`."""

from __future__ import annotations

from pathlib import Path

from rpegc.validate.report import markdown, table, validate

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- rpegc validate: begin -->", "<!-- rpegc validate: end -->"
SHORT = {
    "what is predicted": "what",
    "rows": "rows",
    "left out of the fit": "left out",
    "median": "left-out median",
    "p90": "left-out p90",
    "bar": "bar",
    "holds": "holds",
}


def between(text: str, content: str) -> str:
    """Return a text with `content` between its marks."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{content}\n\n{END}{tail}"


def main() -> int:
    """Validate on the rows of the package and write both files."""
    results = validate(None, None)
    lines = ["| " + " | ".join(SHORT) + " |", "|" + "|".join("---" for _ in SHORT) + "|"]
    lines += ["| " + " | ".join(row[column] for column in SHORT.values()) + " |" for row in table(results)]
    for name, content in (("README.md", "\n".join(lines)), ("docs/model.md", markdown(results))):
        path = ROOT / name
        path.write_text(between(path.read_text(encoding="utf-8"), content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
