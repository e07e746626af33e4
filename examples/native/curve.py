"""Print the reward of a native run as text, and draw it as a picture: `curve.py RUN_FOLDER [LOW HIGH]`.

With LOW and HIGH: exit with 1 unless the mean reward of the first steps is below LOW and that of the last above HIGH.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 720, 360, 48
FEW = 5
"""Steps whose mean stands for the beginning and the end."""


def main() -> int:
    """Read the run's metrics, print and draw them."""
    folder = Path(sys.argv[1])
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rewards = [float(json.loads(line)["reward_mean"]) for line in lines]
    for step in range(0, len(rewards), max(len(rewards) // 20, 1)):
        print(f"step {step:4d}  reward {rewards[step]:.2f}  {'#' * round(40 * rewards[step])}")
    picture = folder / "reward.svg"
    picture.write_text(svg(rewards), encoding="utf-8")
    first, last = (sum(part) / len(part) for part in (rewards[:FEW], rewards[-FEW:]))
    print(f"mean reward of the first {FEW} steps {first:.2f}, of the last {FEW} {last:.2f}; picture: {picture}")
    if len(sys.argv) < 4:
        return 0
    return int(not (first < float(sys.argv[2]) and last > float(sys.argv[3])))


def svg(rewards: list[float]) -> str:
    """Return the curve as SVG: reward from 0 to 1 over steps."""
    inner, tall = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    points = " ".join(
        f"{MARGIN + inner * step / max(len(rewards) - 1, 1):.1f},{HEIGHT - MARGIN - tall * reward:.1f}"
        for step, reward in enumerate(rewards)
    )
    marks = "".join(
        f'<line x1="{MARGIN}" y1="{HEIGHT - MARGIN - tall * part:.0f}" x2="{WIDTH - MARGIN}" '
        f'y2="{HEIGHT - MARGIN - tall * part:.0f}" stroke="#ddd"/>'
        f'<text x="8" y="{HEIGHT - MARGIN - tall * part + 4:.0f}">{part:.1f}</text>'
        for part in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>{marks}'
        f'<polyline points="{points}" fill="none" stroke="#1f6feb" stroke-width="2"/>'
        f'<text x="{WIDTH // 2 - 60}" y="{HEIGHT - 12}">RL step (0 to {len(rewards) - 1})</text>'
        f'<text x="{MARGIN}" y="24">mean reward, native engine</text></svg>\n'
    )


if __name__ == "__main__":
    sys.exit(main())
