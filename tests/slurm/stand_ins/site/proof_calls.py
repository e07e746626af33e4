"""What the stand-ins share: a line of JSON for each call, and files that say which nodes run Ray."""

import json
import os
from pathlib import Path

FOLDER = Path(os.environ["RPEGC_PROOF_FOLDER"])
NODE = os.environ.get("SLURMD_NODENAME", "")
GPUS_PER_NODE = 4


def record(program, **facts):
    """Append a call; a single write, as several nodes share the file."""
    line = json.dumps({"program": program, "node": NODE} | facts) + "\n"
    with os.fdopen(os.open(FOLDER / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb") as file:
        file.write(line.encode())


def alive():
    """Return the nodes on which Ray runs."""
    return sorted(path.name.removeprefix("alive-") for path in FOLDER.glob("alive-*"))


def planted(name, default=""):
    """Return what a test planted for this call."""
    return os.environ.get(f"RPEGC_PROOF_{name}", default)
