# Sourced first by the scripts that start others: starts the script anew beneath supervise.py, which ends everything that
# it has started when it is ended. bash alone would leave a training behind (kill), or heed the signal only after it.
if [ "${SUPERVISOR:-}" != "$PPID" ] && [[ " $* " != *" --dry-run "* ]] &&
  "${PYTHON:-python3}" -S -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  exec "${PYTHON:-python3}" -S "$(dirname "${BASH_SOURCE[0]}")/supervise.py" "$BASH" $([[ $- != *x* ]] || echo -x) "$0" "$@"
fi
