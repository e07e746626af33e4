#!/bin/bash
# Makes the Python environment that the DeepSpeed proofs run in (CPU, about 1.5 GB), or leaves a complete one as it is.
#   make_environment.sh FOLDER
set -euo pipefail

folder=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# The mark is the requirements that were installed: written last, so that half an environment is made anew.
mark=$folder/installed.txt
cmp -s <(cat "$here/requirements.txt" "$here/openrlhf.txt") "$mark" && exit 0

rm -rf "$folder"
"${PYTHON:-python3}" -m venv "$folder"
pip=("$folder/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" setuptools wheel
export DS_BUILD_OPS=0 # kernels are built when they are first used, if at all
"${pip[@]}" --no-build-isolation -r "$here/requirements.txt"
# OpenRLHF pins other versions and needs a GPU to import: only its command line parser is read.
"${pip[@]}" --no-deps -r "$here/openrlhf.txt"
# DeepSpeed compiles this kernel when processes on CPUs first meet, which takes minutes on a busy machine.
PATH=$folder/bin:$PATH TORCH_EXTENSIONS_DIR=$folder/extensions DS_ACCELERATOR=cpu "$folder/bin/python" -c \
    'from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load(verbose=False)' >&2
cat "$here/requirements.txt" "$here/openrlhf.txt" >"$mark"
