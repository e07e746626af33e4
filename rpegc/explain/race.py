"""The race: three unlike plans run three steps each in one allocation, and prediction is set beside measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath

from rpegc.emit import EmittedFile, Files
from rpegc.errors import InputError
from rpegc.plan import Plan

STEPS = 3
SUBMIT = "launch/submit.sbatch"
OVERRIDES = (
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=False",
)
"""What makes verl stop after so many steps, without tests and checkpoints."""


def race_files(plans: tuple[Plan, ...], compiled: tuple[Files, ...]) -> dict[str, EmittedFile]:
    """Return the files of a race: every plan but the first under `candidates/N`, `launch/race.sbatch` and its report.

    Raises InputError for a target or site whose launch is no SLURM job of verl.
    """
    if plans[0].target.name != "verl" or SUBMIT not in compiled[0]:
        raise InputError("--candidates writes a race for verl on SLURM only: use another target or site")
    files: dict[str, EmittedFile] = {}
    for number, emitted in enumerate(compiled[1:], start=2):
        files |= {str(PurePosixPath("candidates") / str(number) / name): file for name, file in emitted.items()}
    header = [line for line in compiled[0][SUBMIT].content.decode().splitlines() if line.startswith("#SBATCH ")]
    files["launch/race.sbatch"] = EmittedFile(_script(header, len(plans)).encode(), executable=True)
    entries = [_entry(number, plan) for number, plan in enumerate(plans, start=1)]
    files["launch/race.json"] = EmittedFile((json.dumps({"plans": entries}, indent=2) + "\n").encode())
    files["launch/race_report.py"] = EmittedFile(_REPORT.encode())
    return files


def _entry(number: int, plan: Plan) -> Mapping[str, object]:
    stages = {stage.name: stage.seconds for stage in plan.stages}
    return {"number": number, "period_s": plan.period_s, "interval_s": list(plan.period_interval_s), "stages": stages}


def _script(header: list[str], count: int) -> str:
    lines = [
        "#!/bin/bash",
        f"# The race: {count} plans, {STEPS} steps each, in one allocation; then prediction against measurement.",
        "# Submit from the folder that relative paths of the pipeline start in:  sbatch --account=PROJECT FILE",
        *header,
        "",
        _RACE.replace("COUNT", str(count)).replace("OVERRIDES", " ".join(OVERRIDES)),
    ]
    return "\n".join(lines)


_RACE = """set -euo pipefail

if [[ -z "${RPEGC_LAUNCH_DIR:-}" ]]; then
    script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p' | head -n 1)
    [[ $script == /*/race.sbatch* ]] || {
        echo "race.sbatch: cannot tell where it lies: set RPEGC_LAUNCH_DIR to its folder" >&2
        exit 1
    }
    RPEGC_LAUNCH_DIR=$(cd "${script%%/race.sbatch*}" && pwd)
fi
here=$RPEGC_LAUNCH_DIR
race=${RPEGC_RACE_DIR:-$SLURM_SUBMIT_DIR/race-$SLURM_JOB_ID}
mkdir -p "$race"

for number in $(seq COUNT); do
    launch=$here
    [[ $number -eq 1 ]] || launch=$here/../candidates/$number/launch
    echo "race.sbatch: plan $number"
    # A plan that fails loses; the others still run.
    RPEGC_LAUNCH_DIR=$(cd "$launch" && pwd) RPEGC_RUN_DIR=$race/run-$number \\
        bash "$launch/submit.sbatch" OVERRIDES >"$race/plan-$number.log" 2>&1 \\
        || echo "race.sbatch: plan $number failed, see $race/plan-$number.log"
done

python3 "$here/race_report.py" "$here/race.json" "$race" | tee "$race/report.txt"
echo "next: rpegc calibrate with $race/plan-*.log fits the prices to this machine; compile again with its profile"
"""

_REPORT = '''"""Prediction against measurement of a race: python3 race_report.py RACE_JSON LOG_FOLDER."""

import json
import re
import sys
from pathlib import Path

STEP = re.compile(r"\\\\btiming_s/step:\\\\s*([0-9.]+(?:e[+-]?[0-9]+)?)")


def measured(log):
    """Return the mean seconds of the steps after the first, which warms up; None if there are too few."""
    if not log.exists():
        return None
    seconds = [float(found) for found in STEP.findall(log.read_text(encoding="utf-8", errors="replace"))]
    return sum(seconds[1:]) / len(seconds[1:]) if len(seconds) > 1 else None


def main():
    plans = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["plans"]
    print(f"{'plan':>4} {'predicted':>12} {'measured':>12} {'error':>8}  in its 80 % interval")
    times = {}
    for plan in plans:
        seconds = measured(Path(sys.argv[2]) / f"plan-{plan['number']}.log")
        if seconds is None:
            print(f"{plan['number']:>4} {plan['period_s']:>10.1f} s {'failed':>12}")
            continue
        low, high = plan["interval_s"]
        times[plan["number"]] = seconds
        error = plan["period_s"] / seconds - 1
        inside = "yes" if low <= seconds <= high else "no"
        print(f"{plan['number']:>4} {plan['period_s']:>10.1f} s {seconds:>10.1f} s {error:>+8.1%}  {inside}")
    if times:
        print(f"fastest: plan {min(times, key=times.get)}")


main()
'''.replace("\\\\", "\\")
