#!/usr/bin/env bash
# Installs this project with other versions of Python and torch, each in an environment of its own, and runs the unit
# tests there. Prints a line for each; a log of each is kept in the folder LOGS (default: versions).
#
#   tests/versions.sh [PYTHON:TORCH ...]     # such as python3.11:2.6.0
#
# Without arguments Python 3.11 has torch 2.13.0, 2.6.0 and 2.15.0, and Python 3.13 has torch 2.13.0.
#
# A quarter of an hour each; a torch for GPUs takes 6 GB of disk until it is done.
set -uo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
project=$(realpath "$(dirname "$0")/..")
logs=${LOGS:-versions}
mkdir -p "$logs"
unset PYTHON
failed=0
for version in "${@:-python3.11:2.13.0 python3.11:2.6.0 python3.11:2.15.0 python3.13:2.13.0}"; do
  for pair in $version; do
    python=${pair%%:*} torch=${pair#*:} log=$logs/${pair//[:\/]/-}.log
    environment=$(mktemp -d)
    (
      set -e
      "$python" -m venv "$environment"
      . "$environment/bin/activate"
      pip install -q "torch==$torch+cpu" || pip install -q "torch==$torch"
      "$project/tests/run.sh" --ignore "$project/tests/integration"
      python -c "import torch; assert torch.__version__.startswith('$torch'), torch.__version__"
    ) > "$log" 2>&1
    status=$?  # not with `&&` behind it: the shell does not obey `set -e` within a condition
    said=""
    [ $status = 0 ] || failed=1 said="FAILED, see $log: "
    echo "$("$python" --version 2>&1), torch $torch: $said$(tail -n 1 "$log")"
    rm -rf "$environment"
  done
done
exit "$failed"
