#!/usr/bin/env bash
# Everything that only a GPU can show, in one command and one report (gpu-report.json and .md):
#
#   tests/gpu.sh [--minutes 25] [--output gpu-report] [--parts NAME ...] [--small]
#   GPUS=1 tests/gpu.sh python examples/train.py multi30k --jobs 10 --mirror FOLDER    # any command, and no report
#
# The parts are machine, precisions, search, processes, speed and generation. Where no package index can be reached,
# SITE=FOLDER names a folder in which what python3 lacks besides torch is unpacked.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
project=$(realpath "$(dirname "$0")/..")
if [ -n "${SITE:-}" ]; then
  [ -d "$SITE" ] || { echo "gpu.sh: SITE=$SITE: there is no such folder" >&2; exit 1; }
  commands=$(mktemp -d)
  trap 'rm -r "$commands"' EXIT
  make_command() { printf '#!/bin/sh\nexec %s "$@"\n' "$2" > "$commands/$1"; chmod +x "$commands/$1"; }
  # A link would not find the packages of python3's virtual environment.
  make_command python "$(printf %q "$(type -P python3)")"
  for name in train generate preprocess; do make_command "fairseq-$name" "python -m fairseq_cli.$name"; done
  make_command torchrun "python -m torch.distributed.run"
  export INSTALL=no PATH="$commands:$PATH" PYTHONPATH="$(realpath "$SITE"):$project"
fi
extras=dev
export PYTHONUTF8=1  # with a locale of ISO 8859 the report could not print κ
cd "$project"
. examples/install/environment.sh
case ${1:--} in -*) set -- python tests/gpu.py "$@" ;; esac
"$@"
