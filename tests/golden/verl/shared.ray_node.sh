#!/bin/bash
# One node's part in the Ray cluster:  address | head ADDRESS | worker | wait GPUS SECONDS | stop
set -euo pipefail

if [[ $1 == address ]]; then
    # This node's IPv4 address: that of its default route, else the first that is not a loopback. A host's own name
    # often leads to 127.0.1.1, where no other node finds it.
    {
        ip -4 route get 192.0.2.1 2>/dev/null | sed -n 's/.* src \([0-9.]*\).*/\1/p' || true
        hostname -I 2>/dev/null | tr ' ' '\n' || true
        hostname --ip-address 2>/dev/null | tr ' ' '\n' || true
    } | awk '/^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$/ && !/^127\./ && !found { print; found = 1 }'
    exit
fi

# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/environment.sh"
cd "$RPEGC_WORK_DIR"
mkdir -p "$RPEGC_RAY_DIR"

options=(
    --num-gpus=4
    --num-cpus="$RPEGC_CPUS_PER_NODE"
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
