# shellcheck shell=bash
# Sourced by every step before Python starts, so that all workers inherit it. Site: generic.
if [[ -n "${RPEGC_VENV:-}" ]]; then
    # shellcheck disable=SC1091
    source "$RPEGC_VENV/bin/activate"
fi
export PYTHONUNBUFFERED=1
export PYTHONDONTWRITEBYTECODE=1 # Python files must leave nothing beside them: rpegc replaces only its own files
export TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
