#!/bin/bash
# One node's part in the Ray cluster:  head ADDRESS | worker | wait GPUS SECONDS | stop
set -euo pipefail

# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/environment.sh"
cd "$RPEGC_WORK_DIR"
mkdir -p "$RPEGC_RAY_DIR"

options=(
    --num-gpus=4
    --num-cpus="${SLURM_CPUS_PER_TASK:-$(nproc)}"
    # Ray would take 30 % of the node's memory, which offloaded states need.
    --object-store-memory="${RPEGC_OBJECT_STORE_BYTES:-4294967296}"
    --disable-usage-stats
    --block
)

case $1 in
    head) exec ray start --head --node-ip-address="$2" --port="${RAY_ADDRESS##*:}" --temp-dir="$RPEGC_RAY_DIR" "${options[@]}" ;;
    worker) exec ray start --address="$RAY_ADDRESS" "${options[@]}" ;;
    wait) exec python3 "$RPEGC_LAUNCH_DIR/wait_for_gpus.py" "$2" "$3" ;;
    stop) exec ray stop ;;
    *) echo "ray_node.sh: unknown part $1" >&2; exit 2 ;;
esac
