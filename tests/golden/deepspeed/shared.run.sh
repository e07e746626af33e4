#!/bin/bash
# One node's part in the job:  address | train [KEY=VALUE ...] | serve
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

RPEGC_LAUNCH_DIR=${RPEGC_LAUNCH_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/folders.sh"
refuse_compiled_folder
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/environment.sh"
cd "$RPEGC_WORK_DIR"

take_gpus() { # FIRST COUNT: of those that the job has on this node
    local gpus
    IFS=, read -r -a gpus <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 3)}"
    CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${gpus[*]:$1:$2}")
    export CUDA_VISIBLE_DEVICES
}

case $1 in
    train)
        take_gpus 0 2
        exec python3 "$RPEGC_LAUNCH_DIR/start_ranks.py" --nnodes=1 --nproc-per-node=2 \
            --node-rank="${SLURM_PROCID:-0}" --master-addr="$RPEGC_MASTER_ADDRESS" --master-port="$RPEGC_MASTER_PORT" \
            "$RPEGC_LAUNCH_DIR/train_grpo.py" "${@:2}"
        ;;
    serve)
        take_gpus 2 2
        # Each line is one argument as it stands, the model's folder or name first: no shell reads it again.
        mapfile -t arguments <"$RPEGC_LAUNCH_DIR/vllm_server.txt"
        [[ ${arguments[0]} != \~/* ]] || arguments[0]=$HOME/${arguments[0]#\~/}
        export VLLM_SERVER_DEV_MODE=1 # without it the server takes no weights
        exec vllm serve "${arguments[@]}" --host="$RPEGC_VLLM_ADDRESS" --port="$RPEGC_VLLM_PORT"
        ;;
    *)
        echo "run.sh: unknown part $1" >&2
        exit 2
        ;;
esac
