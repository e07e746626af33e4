# shellcheck shell=bash
# Sourced with RPEGC_LAUNCH_DIR set: the folder that relative paths start in, and the one that checkpoints go to.
RPEGC_WORK_DIR=${RPEGC_WORK_DIR:-$PWD}
RPEGC_RUN_DIR=${RPEGC_RUN_DIR:-$RPEGC_WORK_DIR/runs/qwen3-8b-grpo}
[[ $RPEGC_RUN_DIR == /* ]] || RPEGC_RUN_DIR=$RPEGC_WORK_DIR/$RPEGC_RUN_DIR
export RPEGC_LAUNCH_DIR RPEGC_WORK_DIR RPEGC_RUN_DIR

refuse_compiled_folder() { # the next compilation replaces that folder
    local compiled
    compiled=$(cd "$RPEGC_LAUNCH_DIR/.." && pwd -P)
    case $(realpath -m -- "$RPEGC_RUN_DIR")/ in
        "$compiled"/*)
            echo "checkpoints would go to $RPEGC_RUN_DIR, inside the compiled folder: submit from the folder that relative paths of the pipeline start in, or set RPEGC_RUN_DIR" >&2
            exit 1
            ;;
    esac
}
