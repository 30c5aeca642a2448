#!/usr/bin/env bash
# Everything that only a GPU can show, in one command and one report (OUTPUT.json, OUTPUT.md):
#
#   tests/gpu.sh [--minutes 25] [--output gpu-report] [--parts NAME ...] [--small]
#
# --help lists the parts. Where no package index can be reached, SITE=FOLDER names a folder in which what python3 lacks
# besides torch is unpacked. Multi30k comes from its repository, or from the folder that MIRROR names.
set -euo pipefail
project=$(cd "$(dirname "$0")/.." && pwd)
if [ -n "${SITE:-}" ]; then
  [ -d "$SITE" ] || { echo "gpu.sh: SITE=$SITE: there is no such folder" >&2; exit 1; }
  commands=$(mktemp -d)
  trap 'rm -r "$commands"' EXIT
  ln -s "$(command -v python3)" "$commands/python"
  for name in train generate preprocess; do
    printf '#!/bin/sh\nexec python -m fairseq_cli.%s "$@"\n' "$name" > "$commands/fairseq-$name"
  done
  printf '#!/bin/sh\nexec python -m torch.distributed.run "$@"\n' > "$commands/torchrun"
  chmod +x "$commands"/*-* "$commands/torchrun"
  export INSTALL=no PATH="$commands:$PATH" PYTHONPATH="$(cd "$SITE" && pwd):$project"
fi
. "$project/examples/install/environment.sh"
cd "$project"
python tests/gpu.py "$@"
