"""`python -m torch.distributed.run ... -m rpegc.runtime PLAN [--folder RUN]`: run a plan on this process."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Run the plan that the arguments name; return the exit code. Heavy modules are imported here, not in workers."""
    parser = argparse.ArgumentParser(prog="rpegc.runtime", description="Run a plan of `target: native`.")
    parser.add_argument("plan", type=Path, help="plan.json, or the folder that holds it")
    parser.add_argument("--folder", type=Path, default=Path("run"), help="where checkpoints and metrics go")
    parser.add_argument("--steps", type=int, default=None, help="stop after this many steps of the plan's")
    arguments = parser.parse_args()
    from rpegc.errors import MissingPiece, RpegcError
    from rpegc.plan import read_plan

    try:
        plan = read_plan(arguments.plan)
        try:
            from rpegc.runtime.run import Options, run
        except ImportError as error:
            raise MissingPiece(f"{error.name} is missing: pip install 'rpegc[native]'") from None
        run(plan, Options(arguments.folder, arguments.steps))
    except RpegcError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
