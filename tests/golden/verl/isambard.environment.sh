# shellcheck shell=bash
# Sourced by every step before Ray starts, so that all of Ray's workers inherit it. Site: isambard.
if [[ -n "${RPEGC_VENV:-}" ]]; then
    # shellcheck disable=SC1091
    source "$RPEGC_VENV/bin/activate"
fi
export NCCL_NET=${NCCL_NET:-'AWS Libfabric'}
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-hsn}
export NCCL_NET_GDR_LEVEL=${NCCL_NET_GDR_LEVEL:-PHB}
export NCCL_CROSS_NIC=${NCCL_CROSS_NIC:-1}
export NCCL_PROTO=${NCCL_PROTO:-'^LL128'}
export FI_CXI_DEFAULT_CQ_SIZE=${FI_CXI_DEFAULT_CQ_SIZE:-131072}
export FI_CXI_DEFAULT_TX_SIZE=${FI_CXI_DEFAULT_TX_SIZE:-16384}
export FI_CXI_DISABLE_HOST_REGISTER=${FI_CXI_DISABLE_HOST_REGISTER:-1}
export FI_CXI_RX_MATCH_MODE=${FI_CXI_RX_MATCH_MODE:-software}
export FI_MR_CACHE_MONITOR=${FI_MR_CACHE_MONITOR:-userfaultfd}
export PYTHONUNBUFFERED=1
export PYTHONDONTWRITEBYTECODE=1 # Python files must leave nothing beside them: rpegc replaces only its own files
export VERL_FILE_LOGGER_PATH=${VERL_FILE_LOGGER_PATH:-$RPEGC_RUN_DIR/metrics-${SLURM_JOB_ID:-local}.jsonl}
