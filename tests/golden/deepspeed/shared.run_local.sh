#!/bin/bash
# qwen3-8b-grpo: one node with 4 GPUs, without SLURM. TRL on DeepSpeed 0.19.8.
# Run it in the folder that relative paths of the pipeline start in. Arguments are settings of GRPOConfig: KEY=VALUE.
set -euo pipefail

RPEGC_LAUNCH_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/folders.sh"
refuse_compiled_folder
# shellcheck disable=SC2153 # folders.sh sets it
mkdir -p "$RPEGC_RUN_DIR"
export RPEGC_MASTER_ADDRESS=127.0.0.1 RPEGC_MASTER_PORT=${RPEGC_MASTER_PORT:-29500}
export RPEGC_VLLM_ADDRESS=127.0.0.1 RPEGC_VLLM_PORT=${RPEGC_VLLM_PORT:-8000}
export RPEGC_VLLM_SERVER_URL=http://127.0.0.1:$RPEGC_VLLM_PORT

bash "$RPEGC_LAUNCH_DIR/preflight.sh"

started=()
stop() {
    status=$?
    trap - EXIT
    trap '' INT TERM
    kill "${started[@]}" 2>/dev/null || true
    wait || true
    exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

bash "$RPEGC_LAUNCH_DIR/run.sh" serve &
started+=($!)
bash "$RPEGC_LAUNCH_DIR/run.sh" train "$@" &
training=$!
started+=("$training")
ended=0
wait -n || ended=$?
if kill -0 "$training" 2>/dev/null; then # the trainer would wait for a server that never comes
    echo "run_local.sh: vLLM's server ended (status $ended) before the training" >&2
    exit 1
fi
[[ $ended -eq 0 ]] || exit "$ended"
