# Sourced first by scripts that start others: shows the script's head for --help, and restarts the script under
# supervise.py, which ends all its processes when it is ended. bash alone would leave a training running (kill), or
# would react to the signal only after it.

# With these settings of a user's shell `cd`, imports and `>` would do something else, fairseq-train would not log its
# updates (LOGLEVEL=WARNING), and with a locale of ISO 8859 fairseq-generate would end at the first other character.
unset CDPATH PYTHONSAFEPATH LOGLEVEL
set +o noclobber
export PYTHONUTF8=1

case " $* " in *" --help "* | *" -h "*) sed -n '/^#!/d; /^[^#]/q; s/^# \{0,1\}//p' "$0"; exit ;; esac
if [ "${SUPERVISOR:-}" != "$PPID" ] && [[ " $* " != *" --dry-run "* ]] &&
  "${PYTHON:-python3}" -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then  # .venv's may be newer
  exec "${PYTHON:-python3}" -S "$(dirname "${BASH_SOURCE[0]}")/supervise.py" \
    "$BASH" $([[ $- != *x* ]] || echo -x) "$0" "$@"
fi
# The command, for the run's record. own-data.sh sources this before it shifts its two arguments, and then again; a
# variable `typed` of the user's shell has no second element.
[ -n "${typed[1]+set}" ] || typed=("examples/$(basename "$0")" "$@")
