# Sourced first by scripts that start others: restarts the script under supervise.py, which ends all its processes when
# it is ended. bash alone would leave a training running (kill), or would react to the signal only after it.
if [ "${SUPERVISOR:-}" != "$PPID" ] && [[ " $* " != *" --dry-run "* ]] &&
  "${PYTHON:-python3}" -S -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  exec "${PYTHON:-python3}" -S "$(dirname "${BASH_SOURCE[0]}")/supervise.py" "$BASH" $([[ $- != *x* ]] || echo -x) "$0" "$@"
fi
[ -n "${typed+set}" ] || typed=("examples/$(basename "$0")" "$@")  # the command, for the run's record
