# shellcheck shell=bash
# Sourced by every step before Ray starts, so that all of Ray's workers inherit it. Site: generic.
if [[ -n "${RPEGC_VENV:-}" ]]; then
    # shellcheck disable=SC1091
    source "$RPEGC_VENV/bin/activate"
fi
export PYTHONUNBUFFERED=1
export PYTHONDONTWRITEBYTECODE=1 # Python files must leave nothing beside them: rpegc replaces only its own files
export VERL_FILE_LOGGER_PATH=${VERL_FILE_LOGGER_PATH:-$RPEGC_RUN_DIR/metrics-${SLURM_JOB_ID:-local}.jsonl}
