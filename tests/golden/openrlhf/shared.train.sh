#!/bin/bash
# The driver: joins the Ray cluster at RAY_ADDRESS and trains. Further flags of OpenRLHF may follow as arguments.
set -euo pipefail

RPEGC_LAUNCH_DIR=${RPEGC_LAUNCH_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/folders.sh"
refuse_compiled_folder
# shellcheck source=/dev/null
source "$RPEGC_LAUNCH_DIR/environment.sh"
cd "$RPEGC_WORK_DIR"

# Each line is one argument as it stands, but for the folders that only this machine knows: no shell reads it again.
arguments=()
while IFS= read -r line; do
    flag=${line%%=*}
    value=${line#"$flag="}
    case $value in
        '{work}/'*) line=$flag=$RPEGC_WORK_DIR/${value#'{work}/'} ;;
        '{run}/'*) line=$flag=$RPEGC_RUN_DIR/${value#'{run}/'} ;;
        '{launch}/'*) line=$flag=$RPEGC_LAUNCH_DIR/${value#'{launch}/'} ;;
    esac
    arguments+=("$line")
done <"$RPEGC_LAUNCH_DIR/openrlhf_arguments.txt"
if [[ $RPEGC_LAUNCH_DIR$RPEGC_WORK_DIR == *[,@]* ]]; then
    echo "train.sh: OpenRLHF cuts paths at commas and @: rename $RPEGC_LAUNCH_DIR or $RPEGC_WORK_DIR" >&2
    exit 1
fi
exec python3 -m openrlhf.cli.train_ppo_ray "${arguments[@]}" "$@"
