"""Run several plans one after another in one set of processes: `native_many.py PORT PLAN FOLDER [PLAN FOLDER ...]`.

Importing torch takes longer than a run of a tiny model. Each run gets a store of its own on a port of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    from rpegc.plan import read_plan
    from rpegc.runtime.run import Options, run

    port, pairs = int(sys.argv[1]), sys.argv[2:]
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    for number in range(0, len(pairs), 2):
        os.environ["MASTER_PORT"] = str(port + number // 2)
        run(read_plan(Path(pairs[number])), Options(Path(pairs[number + 1])))


if __name__ == "__main__":
    main()
