#!/usr/bin/env bash
# Installs missing packages, and runs the linter and the tests. Arguments go to pytest:
# tests/run.sh -k attention; tests/run.sh -m slow; tests/run.sh tests/unit/search
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
extras=dev
cd "$(realpath "$(dirname "$0")/..")"
. examples/install/environment.sh
ruff check --quiet --config tests/ruff.toml .
ruff format --quiet --check --config tests/ruff.toml .
# Two torch processes with two threads each slow each other down tenfold on two cores, so each gets one thread.
export OMP_NUM_THREADS=1 PYTHONUTF8=1  # with a locale of ISO 8859 the tests could not write their texts
exec python -m pytest -c tests/pytest.ini --rootdir . -n "$(cores)" --dist worksteal "$@"
