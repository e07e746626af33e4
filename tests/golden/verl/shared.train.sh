#!/bin/bash
# The driver: joins the Ray cluster at RAY_ADDRESS and trains. Further overrides may follow as arguments.
set -euo pipefail

RPEGC_LAUNCH_DIR=${RPEGC_LAUNCH_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/folders.sh"
refuse_compiled_folder
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/environment.sh"
cd "$RPEGC_WORK_DIR"

# Each line is one argument as it stands: no shell reads it again.
mapfile -t overrides <"$RPEGC_LAUNCH_DIR/verl_overrides.txt"
exec python3 -m verl.trainer.main_ppo "${overrides[@]}" "$@"
