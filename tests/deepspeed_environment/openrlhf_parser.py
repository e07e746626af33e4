"""OpenRLHF's own argument parser, taken out of its program, which cannot be imported without GPUs, Ray and vLLM.

openrlhf_parser.py flags                  prints its flags, sorted: what `backends/openrlhf/flags-*.txt` holds
openrlhf_parser.py REQUESTS FOLDER        parses [{"arguments": [word, ...]}, ...]; prints one JSON object each
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.metadata
import io
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any


def source() -> str:
    """Return the program's text."""
    files = importlib.metadata.files("openrlhf") or []
    return next(file for file in files if str(file).endswith("cli/train_ppo_ray.py")).read_text()


def main_block() -> list[ast.stmt]:
    """Return the statements that the program runs."""
    for node in ast.parse(source()).body:
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            return node.body
    raise SystemExit("the program has no main block")


def parser() -> argparse.ArgumentParser:
    """Return the parser: everything up to the line that parses."""
    statements = []
    for node in main_block():
        if isinstance(node, ast.Assign) and "parse_args" in ast.unparse(node.value):
            break
        statements.append(node)
    names: dict[str, Any] = {"argparse": argparse, "datetime": datetime}
    exec(compile(ast.Module(statements, []), "train_ppo_ray.py", "exec"), names)
    found: argparse.ArgumentParser = names["parser"]
    return found


def checks() -> Any:
    """Return the program's own checks of what was parsed, as code: what lies between parsing and `train(args)`."""
    block = [(node, ast.unparse(node)) for node in main_block()]
    first = next(index for index, (_, text) in enumerate(block) if "parse_args" in text)
    kept = [node for node, text in block[first + 1 :] if text != "train(args)"]
    plain = [node for node in kept if not isinstance(node, ast.ImportFrom)]
    return compile(ast.Module(plain, []), "train_ppo_ray.py", "exec")


def hierarchize() -> Any:
    """Return OpenRLHF's function that makes a tree of dotted names, from its file alone."""
    files = importlib.metadata.files("openrlhf") or []
    text = next(file for file in files if str(file).endswith("openrlhf/utils/config.py")).read_text()
    names: dict[str, Any] = {}
    exec(compile(text, "config.py", "exec"), names)
    return names["hierarchize"]


def report(request: dict[str, Any]) -> dict[str, Any]:
    """Parse one command line and run the program's checks; return what it read, or what it said."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parsed = parser().parse_args(request["arguments"])
            flat = dict(vars(parsed))
            exec(checks(), {"args": parsed, "hierarchize": hierarchize()})
    except (SystemExit, AssertionError) as error:
        return {"ok": False, "error": f"{said.getvalue()} {error}"}
    return {"ok": True, "values": flat, "said": said.getvalue()}


if __name__ == "__main__":
    if sys.argv[1] == "flags":
        print(f"# Flags of openrlhf/cli/train_ppo_ray.py of OpenRLHF {importlib.metadata.version('openrlhf')} (PyPI)")
        flags = {text[2:] for action in parser()._actions for text in action.option_strings if text.startswith("--")}
        print("\n".join(sorted(flags - {"help"})))
    else:
        requests = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        print("\n" + json.dumps([report(request) for request in requests], default=str))
