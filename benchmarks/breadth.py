"""Measure the large pipelines: seconds to a plan of each, proven gap, and what was chosen.

    python benchmarks/breadth.py [--json]

Bars: 30 seconds on two cores and a gap of 1 %. Times are printed beside their bar and never fail a run: machines are
shared and noisy, so processor seconds stand beside the wall's. A gap above its bar, or no plan, makes the exit code 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import timed

PIPELINES = {
    "GRPO, Qwen3-235B-A22B, 256 GPUs": "grpo_qwen3_235b.yaml",
    "DAPO, Qwen3-32B, 30k responses, 128 GPUs": "dapo_qwen3_32b_30k.yaml",
    "PPO, Llama-3.1-70B, 8B critic and reward model, 128 GPUs": "ppo_llama31_70b.yaml",
    "GRPO, DeepSeek-V3, 512 GPUs": "grpo_deepseek_v3.yaml",
}
SECONDS = 30.0
GAP = 0.01


def measured(file: str) -> dict[str, object]:
    """Compile one example; return its figures."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "plan"
        try:
            wall, processor = timed("compile", f"examples/{file}", "-o", str(folder))
        except subprocess.CalledProcessError as problem:
            return {"error": problem.stderr.decode(errors="replace").strip().splitlines()[:2]}
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return {
        "wall_s": round(wall, 1),
        "processor_s": round(processor, 1),
        "gap": plan["gap"],
        "gap_bar": GAP + 0.001 / plan["period_s"],
        "period_s": round(plan["period_s"], 1),
        "engine": plan["graph"]["engine"],
        "mode": plan["graph"]["mode"],
        "layouts": plan["search"]["layouts"],
        "meshes": plan["search"]["meshes"],
    }


def main() -> int:
    """Print the figures of each pipeline; return 1 if one has no plan or too wide a gap."""
    report = {name: measured(file) for name, file in PIPELINES.items()}
    failed = any("error" in row or float(str(row["gap"])) > float(str(row["gap_bar"])) for row in report.values())
    if "--json" in sys.argv[1:]:
        print(json.dumps(report, indent=2))
        return int(failed)
    for name, row in report.items():
        if "error" in row:
            print(f"{name}: no plan: {row['error']}")
            continue
        print(
            f"{name}: {row['wall_s']} s (bar {SECONDS:g}), {row['processor_s']} s of processor; gap "
            f"{100 * float(str(row['gap'])):.2f} % (bar {100 * GAP:g} %); {row['engine']}, {row['mode']}, "
            f"{row['period_s']} s a step; {row['layouts']} layouts on {row['meshes']} mesh classes"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
