#!/bin/bash
# qwen3-8b-grpo: one node with 4 GPUs, without SLURM. verl 0.9.1.
# Run it in the folder that relative paths of the pipeline start in.
set -euo pipefail

RPEGC_LAUNCH_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
RPEGC_WORK_DIR=${RPEGC_WORK_DIR:-$PWD}
RPEGC_RUN_DIR=${RPEGC_RUN_DIR:-$RPEGC_WORK_DIR/runs/qwen3-8b-grpo}
RPEGC_RAY_DIR=${RPEGC_RAY_DIR:-/tmp/ray-rpegc-$$}
export RPEGC_LAUNCH_DIR RPEGC_WORK_DIR RPEGC_RUN_DIR RPEGC_RAY_DIR
export RAY_ADDRESS=127.0.0.1:${RPEGC_RAY_PORT:-6379}
mkdir -p "$RPEGC_RUN_DIR"

bash "$RPEGC_LAUNCH_DIR/preflight.sh"

ray=
stop() {
    status=$?
    trap - EXIT
    trap '' INT TERM
    if [[ -n $ray ]]; then
        kill "$ray" 2>/dev/null || true # only the Ray that this script started: `ray stop` would end others too
        wait "$ray" || true
    fi
    exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

bash "$RPEGC_LAUNCH_DIR/ray_node.sh" head 127.0.0.1 &
ray=$!
bash "$RPEGC_LAUNCH_DIR/ray_node.sh" wait 4 "${RPEGC_RAY_WAIT_S:-600}"
bash "$RPEGC_LAUNCH_DIR/train.sh" "$@"
