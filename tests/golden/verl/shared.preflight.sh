#!/bin/bash
# Prints everything that is missing or wrong; status 1 if there is anything. Every node of the job runs it first.
#   preflight.sh           settings, files, packages, GPUs and the environment of this node
#   preflight.sh --files   settings and files only: on a login node, without GPUs, Ray or Python packages
set -euo pipefail

RPEGC_LAUNCH_DIR=${RPEGC_LAUNCH_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/folders.sh"

failed=0
complain() {
    echo "preflight: $*" >&2
    failed=1
}

case ${1-} in
    --files) ;;
    '')
        if [[ -n "${RPEGC_VENV:-}" && ! -f "$RPEGC_VENV/bin/activate" ]]; then
            complain "RPEGC_VENV is $RPEGC_VENV, which is no virtual environment (no bin/activate)"
            unset RPEGC_VENV # so that everything else is looked at, too
        fi
        # shellcheck source=/dev/null
        source "$RPEGC_LAUNCH_DIR/environment.sh"
        ;;
    *)
        echo "preflight.sh: unknown option $1; there is --files" >&2
        exit 2
        ;;
esac

if command -v python3 >/dev/null; then
    python3 "$RPEGC_LAUNCH_DIR/preflight.py" "$@" || failed=1
else
    complain "python3 is not on PATH (set RPEGC_VENV or enter the container)"
fi
exit "$failed"
