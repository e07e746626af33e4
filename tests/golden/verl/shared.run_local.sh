#!/bin/bash
# qwen3-8b-grpo: one node with 4 GPUs, without SLURM. verl 0.9.1.
# Run it in the folder that relative paths of the pipeline start in. Arguments are further overrides for verl.
set -euo pipefail

RPEGC_LAUNCH_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/folders.sh"
refuse_compiled_folder
RPEGC_RAY_DIR=${RPEGC_RAY_DIR:-/tmp/ray-rpegc-$$}
RPEGC_CPUS_PER_NODE=${RPEGC_CPUS_PER_NODE:-$(nproc)}
export RPEGC_RAY_DIR RPEGC_CPUS_PER_NODE
export RAY_ADDRESS=127.0.0.1:${RPEGC_RAY_PORT:-6379}
if [[ $RPEGC_CPUS_PER_NODE -lt 22 ]]; then
    echo "run_local.sh: verl's processes ask for 22 CPUs (3 for each GPU, 9 for its data queue, 1 free), the node has $RPEGC_CPUS_PER_NODE" >&2
    exit 1
fi
# shellcheck disable=SC2153 # folders.sh sets it
mkdir -p "$RPEGC_RUN_DIR"

bash "$RPEGC_LAUNCH_DIR/preflight.sh"

ray=
waiting=
stop() {
    status=$?
    trap - EXIT
    trap '' INT TERM
    [[ -z $waiting ]] || kill "$waiting" 2>/dev/null || true
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
bash "$RPEGC_LAUNCH_DIR/ray_node.sh" wait 4 "${RPEGC_RAY_WAIT_S:-600}" &
waiting=$!
ready=0
wait -n || ready=$?
if kill -0 "$waiting" 2>/dev/null; then # Ray ended first: its GPUs never come
    echo "run_local.sh: Ray ended before all 4 GPUs were there" >&2
    exit 1
fi
waiting=
[[ $ready -eq 0 ]] || exit "$ready"
bash "$RPEGC_LAUNCH_DIR/train.sh" "$@"
