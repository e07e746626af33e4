#!/bin/bash
# Makes the Python environment that a proof of verl configurations runs in, or leaves a complete one as it is.
#   make_environment.sh LEVEL FOLDER
# LEVEL compose: verl's Hydra files only (51 MB).  LEVEL validate: verl's own checks as well, on CPU (about 1.5 GB).
set -euo pipefail

level=$1
folder=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/$level.txt
[[ -f $requirements ]] || { echo "make_environment.sh: no level $level" >&2; exit 2; }

# The mark is the requirements that were installed: written last, so that half an environment is made anew.
mark=$folder/installed.txt
cmp -s "$here/verl.txt" <(head -n 1 "$mark" 2>/dev/null) && cmp -s "$requirements" <(tail -n +2 "$mark" 2>/dev/null) && exit 0

rm -rf "$folder"
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/verl.txt"
"$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
cat "$here/verl.txt" "$requirements" >"$mark"
