#!/bin/bash
# Refuses to start what cannot end well: missing inputs, wrong versions, too few GPUs. Runs on every node.
set -euo pipefail

RPEGC_LAUNCH_DIR=${RPEGC_LAUNCH_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
RPEGC_WORK_DIR=${RPEGC_WORK_DIR:-$PWD}
RPEGC_RUN_DIR=${RPEGC_RUN_DIR:-$RPEGC_WORK_DIR/runs/qwen3-8b-grpo}
export RPEGC_LAUNCH_DIR RPEGC_WORK_DIR RPEGC_RUN_DIR
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/environment.sh"

for command in python3 ray nvidia-smi; do
    command -v "$command" >/dev/null || { echo "preflight: $command is not on PATH (set RPEGC_VENV or enter the container)" >&2; exit 1; }
done
exec python3 "$RPEGC_LAUNCH_DIR/preflight.py"
