# Sourced by the other scripts: makes `python` one that has this project installed, with the extras $extras (e.g. dev).
# Missing packages are added to an active virtual or conda environment, whose packages are kept unless they are too old;
# otherwise ./.venv is made. Nothing is installed twice. PYTHON names another interpreter for .venv. INSTALL=no uses the
# `python` of PATH without changes, on a machine that has no access to a package index.

unset CDPATH  # with it `cd` would print, or lead elsewhere
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
extras=${extras:-}
tested=$project/examples/install/constraints.txt
torch_version=2.13.0
older_gpus="--index-url https://download.pytorch.org/whl/cu126"  # and drivers before 580

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

. "$project/examples/install/cores.sh"
# Several processes share them (recipe.sh). torch does not see the limit, and a newer nproc does.
[ "${PROCESSES:-1}" != 1 ] ||
  [ "$(cores)" = "$("${PYTHON:-python3}" -c 'import os; print(len(os.sched_getaffinity(0)))' 2>/dev/null)" ] ||
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(cores)}"

own_environment=
[ "${INSTALL:-no}" = no ] || fail "INSTALL=$INSTALL: give INSTALL=no, or omit it to install what is missing"
[ "${INSTALL:-}" != no ] || return 0

require_python() {  # an interpreter, and what to do if it is another one
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null ||
    fail "Python 3.11 to 3.13 is needed, and $1 is $(type -P "$1" >/dev/null && "$1" --version 2>&1 || echo missing)." \
      "${2:-Name another one: PYTHON=/path/to/python3.11 $0}"
}

debian() {  # an interpreter: its package
  "$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])'
}

require_compiler() {  # fairseq is distributed as source
  local compiler=${CXX:-c++}
  command -v "${compiler%% *}" >/dev/null ||  # CXX may be "ccache g++"
    fail "fairseq has to be compiled, and there is no C++ compiler. Install one, g++ 10 or newer: apt-get install g++"
  [ -e "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
    fail "fairseq has to be compiled, and $interpreter has no headers. Install them, e.g.:" \
      "apt-get install $(debian "$interpreter")-dev"
}

install_torch() {
  python -c 'import torch' 2>/dev/null && return
  if [ "$(uname)" != Linux ] || nvidia-smi -L >/dev/null 2>&1; then
    # PyPI's build has CUDA 13, for GPUs since Turing (7.5) and drivers since 580; that of CUDA 12.6 is for older ones.
    local old; old=$(nvidia-smi --query-gpu=compute_cap,driver_version --format=csv,noheader 2>/dev/null |
      awk -F '[,.]' '$1 + 0 < 10 && ($1 * 10 + $2 < 75 || $3 < 580)') || true
    python -m pip install "torch==$torch_version" ${old:+$older_gpus}
  else  # Linux's default build brings gigabytes of CUDA libraries
    python -m pip install -q "torch==$torch_version+cpu" 2>/dev/null ||
      python -m pip install "torch==$torch_version" --index-url https://download.pytorch.org/whl/cpu ||
      fail "no CPU build of torch $torch_version can be downloaded." \
        "Install another torch into an environment, activate it and try again."
  fi
}

install_fairseq() {  # file with constraints
  echo "== installing fairseq (compiled here: about two minutes)"
  python -m pip install -q -c "$1" setuptools wheel cython numpy
  # Building its extensions in parallel, and without optimisation, because translation never calls them, takes 2
  # minutes on two cores instead of 4. A `ninja` that fails keeps torch from building them in one folder, where they
  # would overwrite each other's files. Without CUDA_HOME no CUDA extension is built; these models need none.
  local build; build=$(mktemp -d)
  ln -s "$(type -P false)" "$build/ninja"  # the file, because `false` is also a builtin of the shell
  printf '[build_ext]\nparallel = %s\n' "$(cores)" > "$build/parallel.cfg"
  env -u CUDA_HOME PATH="$build:$PATH" DIST_EXTRA_CONFIG="$build/parallel.cfg" CFLAGS="-O0 -g0" \
    python -m pip install -v --no-build-isolation -c "$1" "$(grep '^fairseq-fixed==' "$1")" 2>&1 |
    tee "$build/log" |
    sed -unE "s/^(Collecting [^ ]+).*|^ *(building '[^']+' extension)|^(Successfully installed .*)/\\1\\2\\3/p" ||
    { tail -n 30 "$build/log" >&2; fail "fairseq could not be installed; the last lines of $build/log are above"; }
  rm -r "$build"
}

install_project() {
  local missing=
  python -m pip show -q fairseq-fixed 2>/dev/null || missing=yes
  [ -z "$missing" ] || require_compiler
  local folder; folder=$(mktemp -d)
  local constraints=$folder/constraints
  cp "$tested" "$constraints"
  if [ -z "$own_environment" ]; then  # keep the packages of a user's environment
    python -m pip list --format=freeze | sed 's/==.*//; s/_/[-_]/g; s/$/==/; s/^/^/' > "$constraints.kept"
    grep -vif "$constraints.kept" "$tested" > "$constraints" || true
  fi
  echo "== installing into $(python -c 'import sys; print(sys.prefix)'): torch"
  install_torch
  [ -z "$missing" ] || install_fairseq "$constraints"
  echo "== installing this project"
  python -m pip install -q --no-build-isolation -c "$constraints" -e "$project${extras:+[$extras]}"
  rm -r "$folder"
}

if [ -n "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
  interpreter=python active=${VIRTUAL_ENV:-$CONDA_PREFIX}
  require_python "$interpreter" "Deactivate $active, or activate an environment that has it."
  environment=$(python -c 'import sys; print(sys.prefix)')
  [ "$environment" -ef "${VIRTUAL_ENV:-}" ] || [ "$environment" -ef "${CONDA_PREFIX:-}" ] ||
    fail "$active is active, and python is that of $environment. Activate it again, or deactivate it."
else
  own_environment=yes environment=$project/.venv interpreter=${PYTHON:-python3}
  outside=$(type -P "$interpreter" || echo "$interpreter")  # not .venv's own
  if [ ! -x "$environment/bin/python" ]; then
    [ ! -L "$environment/bin/python" ] || fail "the Python that $environment was made with is gone; remove this folder"
    require_python "$interpreter"
  fi
  # pip writes the path of the environment's Python into the first line of each command or, if that is long or has a
  # space, into the second one: '''exec' "/a folder/.venv/bin/python" "$0" "$@".
  made_for=$(sed -nE "1s/^#!//p; 2s/^'''exec' \"?([^\"]*)\"? .*/\1/p" "$environment/bin/fairseq-train" 2>/dev/null |
    tail -n 1) || true
  [ -z "$made_for" ] || [ -x "$made_for" ] ||
    fail "$environment was made in another folder: its commands need $made_for; remove this folder"
  PATH="$environment/bin:$PATH"
fi

# A new tool is a new command, which setup.py finds by its name. In another locale they would have another order.
wanted=$(LC_ALL=C; { cat "$project/setup.py" "$tested"; echo "$project"/user_dir/tools/*.py; } | cksum)
note=$environment/fairseq-transformer-variants  # .EXTRAS.installed is a file for each list of extras, also for none
installed() { [ "$(cat "$note.$extras.installed" 2>/dev/null)" = "$wanted" ]; }

if ! installed; then
  mkdir -p "$environment" 2>/dev/null && [ -w "$environment" ] ||
    fail "$environment cannot be written: clone the project into a folder of your own, or, if the active environment" \
      "has all packages, use it as it is: INSTALL=no $0"
  {
    # If two scripts are started together, the second one waits until everything is installed.
    PYTHONPATH=$project/data-prep "$interpreter" -m preparation.locking 9 "$environment" "${SUPERVISOR:-$$}"
    if ! installed; then
      # Without pip it is what an interrupted `venv` leaves, or one that lacked Debian's python3-venv.
      if [ -n "$own_environment" ] && ! "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
        require_python "$outside"
        "$outside" -m venv "$environment" || fail "no virtual environment could be made in $environment." \
          "On Debian, Ubuntu and Colab: apt-get install $(debian "$outside")-venv"
        hash -r  # python is this one from now on
      fi
      [ -n "$own_environment" ] || python -m pip --version >/dev/null ||
        fail "$environment has no pip. Add it: python -m ensurepip, or, if uv made it, uv pip install pip"
      install_project
      rm -f "$note".*.installed  # of another checkout, whose code is not installed any more
      for has in "" "$extras" ${extras/dev/ctranslate2}; do  # dev includes it
        echo "$wanted" > "$note.$has.installed"
      done
    fi
  } 9<> "$note.lock"
fi
