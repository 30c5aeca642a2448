# Sourced by the quickstart and, through recipe.sh, by the other recipes: the steps from a corpus to a score, as plain
# commands made from a recipe's settings. A step is the function of its name, which a recipe may redefine.
#
# A step is skipped if its last file exists (see `last_file_of`); training continues from its last checkpoint. --dry-run
# prints the commands instead of running them; other arguments go to fairseq-train.
#
# Variables that a recipe sets before it sources this file:
#   corpus source target    a corpus of data-prep/corpora.toml, and its two languages
#   preparation=(...)       options of data-prep/prepare.py
#   training=(...)          options of fairseq-train that affect the model; a run continues only with the same options
#   generation=(...)        options of fairseq-generate; those of beam search are saved for nmt-translate (search.json)
# and, if recipe.sh adds the papers' settings and computes the batch:
#   size                    of the model: tiny, iwslt_de_en, base, big or big_en_fr
#   batch rate warmup       source and target tokens per update; the highest learning rate, and the updates before it
#   checkpoints             which checkpoints are averaged: `epoch` for those of each epoch, or updates between them;
#                           `best` (by the validation set) or `last`: only this one translates
#   updates average         updates, and checkpoints to average, if they are not those of the family's paper
#
# Variables that are set before the first step:
#   data run log            the folders of the data and of the run, and the file in it with fairseq-train's output
#   running=(...)           options of fairseq-train that do not affect the model: devices, checkpoints, the clock
#   averaged=(...)          arguments of average_checkpoints
#   reference=(...)         options of user_dir.tools.score
#   chosen                  (only recipe.sh) what chooses the checkpoint that translates; fixed once a run is trained

. "$(dirname "${BASH_SOURCE[0]}")/supervised.sh"
from=$PWD project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

type -P "${PYTHON:-python3}" > /dev/null ||
  fail "there is no ${PYTHON:-python3}: install Python 3.11 to 3.13, or name it: PYTHON=/path/to/python3.11 $0"

at_least() {  # number, names of variables that must hold whole numbers not below it; leading zeros are removed
  local least=$1 name; shift
  for name in "$@"; do
    [[ ${!name} =~ ^[0-9]{1,9}$ ]] && [ "$((10#${!name}))" -ge "$least" ] ||
      fail "$name is ${!name}, and has to be a whole number of at least $least"
    printf -v "$name" %d "$((10#${!name}))"  # bash reads 0100 as 64
  done
}

have_no_effect() {  # names of variables that only other recipes read
  local name
  for name in "$@"; do
    [ -z "${!name:-}" ] || grep -qE "\\$\{?$name\b" "$0" || fail "$name=${!name} has no effect in this recipe; omit it"
  done
}

for name in corpus source target preparation training generation ${more_settings:-}; do
  declare -p "$name" >/dev/null 2>&1 || fail "the recipe does not set $name; see the list in examples/shared/steps.sh"
done

dry_run="" precision="" further=() before=""
for argument in "$@"; do
  case $before$argument in
    --dry-run) dry_run=yes ;;
    --autocast) before=--autocast= ; continue ;;
    --autocast=*) precision=${argument#--autocast=} ;;
    --max-update) before=--max-update= ; continue ;;
    --max-update=*) UPDATES=${argument#--max-update=} ;;  # other settings depend on it
    --arch | --arch=* | -a) fail "$argument: name the model with FAMILY=..., in the quickstart also with ARCH=..." ;;
    --log-format | --log-format=*) fail "$argument: omit it, because the run's record is made of the log" ;;
    --restore-file | --restore-file=* | --reset-*)
      fail "$argument: fairseq would do so whenever the run continues; use --finetune-from-model or --continue-once" ;;
    --no-save | --no-last-checkpoints | --no-save-optimizer-state)
      fail "$argument: a run that is interrupted could not continue; omit it" ;;
    --save-async | --write-checkpoints-asynchronously)
      fail "$argument: fairseq needs iopath for it, and without iopath trains nothing; omit $argument" ;;
    --save-dir | --save-dir=*) fail "$argument: name the folder of the run with OUTPUT=..." ;;
    *) further+=("$argument") ;;
  esac
  before=""
done
[ "$before" != --max-update= ] || fail "--max-update needs a number of updates"
case $before$precision in "" | off | bf16) ;; *) fail "--autocast takes bf16 or off, not '$precision'" ;; esac
if [ -n "${MIRROR:-}" ]; then
  [ -d "$MIRROR" ] || fail "MIRROR=$MIRROR: there is no such folder"
  MIRROR=$(cd "$MIRROR" && pwd)
fi

# Variables that a recipe may change.
launch=(fairseq-train)   # the command that trains
host=0                   # the number of this host; the first one does the work that is done once for all
precisions=yes           # "": the model has no --autocast, or is to compute in float16
case " ${further[*]} " in *" --fp16 "* | *" --memory-efficient-fp16 "* | *" --amp "*) precisions="" ;; esac
silent=""                # yes: commands are not printed

# glibc returns large blocks to the system and gets them again page by page, which costs small models time.
malloc=(MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 MALLOC_ARENA_MAX=1)

# ---- printing and running

print_command() {  # command ...: in a form that can be typed, in lines of a hundred columns, options with their values
  local line="" next="" previous="" word
  for word in "$@" --; do
    printf -v word %q "$word"
    if [[ $word == -* || $previous != -* ]]; then
      if [ -z "$line" ]; then line=${next# }
      elif [ $((${#line} + ${#next})) -le 98 ]; then line+=$next
      else echo "$line \\"; line="   $next"; fi
      next=""
    fi
    next+=" $word" previous=$word
  done
  echo "$line"
}

run() {  # command ...
  [ -n "$silent" ] || print_command "$@"
  [ -n "$dry_run" ] || "$@"
}

# Pipes and redirections. A plan starts with these functions, so that its commands can be pasted.
helpers=(choose_precision await_precision in_precision log_and_show write_to write_translations show_and_keep)

choose_precision() {  # file [precision]: the given one, or the one in the file, or the faster one on this host
  if [ -n "${2:-}" ]; then echo "$2" > "$1"; elif [ ! -s "$1" ]; then python -m user_dir.tools.precision > "$1"; fi
}

await_precision() {  # file that the first host writes
  until [ -s "$1" ]; do sleep 1; done
}

in_precision() {  # file, command ...
  "${@:2}" --autocast "$(cat "$1")"
}

log_and_show() {  # log, command ... (its output is logged to the end, even if Ctrl-C ends it or nobody reads it)
  "${@:2}" 2>&1 | (trap '' INT; tee -pa "$1" | python -m user_dir.tools.show_progress)
}

write_to() {  # output (whole or not at all), errors, command ...
  "${@:3}" > "$1.partial" 2> "$2" && mv "$1.partial" "$1"
}

write_translations() {  # fairseq-generate's output with its lines D-NUMBER <tab> score <tab> translation, file
  grep -a '^D-' "$1" | sort -t- -k2n | cut -f3- > "$2.partial"
  mv "$2.partial" "$2"
}

show_and_keep() {  # file, command ...
  "${@:2}" | tee "$1.partial" || { local status=$?; rm "$1.partial"; return $status; }
  mv "$1.partial" "$1"
}

lock() {  # folder: holds the shell's file 9 until this shell and all its child processes have ended
  PYTHONPATH=data-prep python -m preparation.locking 9 "$1" "${SUPERVISOR:-$$}"
}

begin_plan() {  # prints the `helpers`, or installs what is missing
  cd "$project"
  if [ -n "$dry_run" ]; then
    declare -f "${helpers[@]}"
  else
    . examples/install/environment.sh
    type -P fairseq-train > /dev/null ||
      fail "INSTALL=no, and PATH has no fairseq-train: activate the environment that has it, or omit INSTALL=no"
    refuse_another_run  # before hours of preparation; open_run asks again when it holds the folder's lock
  fi
}

# ---- steps

prepare() {
  run python data-prep/prepare.py "$corpus" --source-lang "$source" --target-lang "$target" --output "$data" \
    "${preparation[@]}" ${MIRROR:+--mirror "$MIRROR"}
}

train() {
  # fairseq makes batches once, from the seed and the epoch in which it was started; a run that continues in a later
  # epoch would get different ones. --update-epoch-batch-itr makes new batches in each epoch, from its number; with
  # fairseq's own task each epoch leaves a data-loader worker behind.
  local command=("${launch[@]}" "$data/data-bin" --save-dir "$run" --user-dir user_dir --task checked_translation
    "${running[@]}" --update-epoch-batch-itr True --log-format simple "${training[@]}" "${further[@]}")
  run mkdir -p "$run"
  # STEPS may have translated with an earlier checkpoint.
  [ -n "$dry_run" ] || [ "$host" != 0 ] || forget_translations
  # A kill may have come between the end of the training and this mark; fairseq need not start for that.
  # (A late Ctrl-C adds a traceback to the log. `tail | grep -q` would at times fail there: grep ends before tail.)
  # The first host's log counts, because it writes the last checkpoint while the others are done already.
  if [ -z "$dry_run" ] && [ -e "$run/checkpoint_last.pt" ] &&
    [[ $(tail -n 50 "$run/train.log" 2>/dev/null) == *"done training in"* ]]; then
    touch "$run/trained"
    return
  fi
  # The precision is chosen when a run begins, on the first host, and kept when the run continues.
  if [ -n "$precision" ]; then
    run choose_precision "$run/precision" "$precision"
    command+=(--autocast "$precision")
  elif [ -n "$precisions" ]; then
    if [ "$host" = 0 ]; then run choose_precision "$run/precision"
    else run await_precision "$run/precision"; fi
    command=(in_precision "$run/precision" "${command[@]}")
  fi
  run log_and_show "$run/$log" "${command[@]}"
  [ -n "$dry_run" ] || touch "$run/trained"
}

check_options() {  # before a preparation that may take hours
  local i given said status=0
  [ ${#further[@]} != 0 ] && [ ! -e "$data/data-bin" ] || return 0
  said=$(fairseq-train "$data/data-bin" --user-dir user_dir --task checked_translation --distributed-world-size 1 \
    --save-dir /dev/null "${training[@]}" "${further[@]}" 2>&1) || status=$?  # a folder would get a file
  [ $status != 2 ] || fail "${said##*$'\n'}"  # fairseq-train's parser ends with 2; the data, still missing, give 1
  for i in "${!further[@]}"; do
    case ${further[i]} in
      --finetune-from-model | --continue-once) given=${further[i + 1]} ;;
      --finetune-from-model=* | --continue-once=*) given=${further[i]#*=} ;;
      *) continue ;;
    esac
    [ -e "$given" ] || fail "${further[i]%%=*}: there is no file $given in $PWD"
  done
}

average() {
  [ -n "$dry_run" ] || [ "${averaged[0]}" != "$run/checkpoint_best.pt" ] || [ -e "${averaged[0]}" ] ||
    [ -e "$run/average.pt" ] || fail "$run has no checkpoint_best.pt: no validation has ended yet, or none was better" \
      "than the best before --continue-once"
  run python -m user_dir.search.search_settings "$run/search.json" "${generation[@]}"  # for nmt-translate
  done_before "$run/average.pt" ||
    run python -m user_dir.tools.average_checkpoints "${averaged[@]}" --output "$run/average.pt"
  # With an export nmt-translate answers in a second. CTranslate2 may not be installed, and does not compute all models.
  run python -m user_dir.tools.export_ctranslate2 "$run/average.pt" --output "$run/ctranslate2" --if-possible
}

translate() {
  [ -n "$dry_run" ] || [ -e "$run/average.pt" ] || fail "$run has no average.pt; add average to STEPS"
  run write_to "$run/generate.log" "$run/generate.err" fairseq-generate "$data/data-bin" \
    --task checked_translation --source-lang "$source" --target-lang "$target" --user-dir user_dir \
    --path "$run/average.pt" \
    --max-tokens 6000 --remove-bpe "${generation[@]}"
  run write_translations "$run/generate.log" "$run/translations.$target"
}

score() {
  run show_and_keep "$run/score.txt" python -m user_dir.tools.score "$run/generate.log" "${reference[@]}"
}

how_to_translate() {  # model, sentence: the command, where the recipe was called
  [ "$from" -ef "$project" ] || printf 'cd %q\n' "$project"
  printf '%q %q "%s"\n' "$([ -z "${own_environment:-}" ] || echo .venv/bin/)nmt-translate" "$1" "$2"
}

record() {  # also for train.py and user_dir.tools.compare
  if [ -n "$dry_run" ]; then echo "# only the recipe itself can write $run/run.json"
  else run python examples/record.py end "$run"; fi
}

last_file_of() {  # step: the file that exists when it is done; the other steps decide themselves what is left to do
  case $1 in
    prepare) [ -w "$data" ] || echo "$data/data-bin" ;;  # of another user, such as a teacher
    train) echo "$run/trained" ;;
    average)  # a deleted average is made again, if its checkpoints are there
      [ ! -e "$run/average.pt" ] && has_checkpoints || echo "$run/translations.$target" ;;
    translate) [ ! -e "$run/generate.log" ] || echo "$run/translations.$target" ;;
  esac
}

done_before() {  # file, or nothing
  [ -z "$dry_run" ] && [ -e "$1" ] && echo "$1 is there"
}

step() {  # name [remedy if it fails]
  local status output=""
  [ -n "$silent" ] || printf '\n# %s\n' "$1"
  ! done_before "$(last_file_of "$1")" || return 0
  if [ "$1" = prepare ] && [ -z "$dry_run" ]; then
    refuse_unwritable "$data" "clone the project into a folder of your own"
    check_options
  fi
  # `( ... ) || ...` would continue after a failing command: the shell ignores `set -e` within a condition.
  set +e
  (set -e; "$1")
  status=$?
  set -e
  [ $status != 0 ] || return 0
  case $status in 130 | 141) exit $status ;; esac  # Ctrl-C, or nobody reads the output
  if [ "$1" = train ] && ! begun; then
    forget_try
    log=failed.$log
  fi
  case $1 in train) output=$run/$log ;; translate) output=$run/generate.err ;; esac
  if [ -e "$output" ]; then  # the process's own error, without torchrun's forty lines about the others
    tail -n 100 "$output" | sed "/^[EW][0-9]* .*elastic.multiprocessing/,/^Root Cause/d; / | {'_name'/d" |
      tail -n 20 >&2
    echo "above: the end of $output" >&2
  fi
  fail "could not $1${2:-; fix the error above and run the same command again to continue}"
}

# ---- the folder of a run

options() { LC_ALL=C.UTF-8 printf '%q ' "$data" "${training[@]}" "${further[@]}"; }  # record.py reads it

has_checkpoints() { local found=("$run"/checkpoint*.pt); [ -e "${found[0]:-}" ]; }

only_average() { [ -e "$run/average.pt" ] && [ ! -e "$run/trained" ] && ! has_checkpoints; }

begun() { [ -e "$run/trained" ] || [ -e "$run/average.pt" ] || has_checkpoints; }

forget_try() {  # nothing is trained yet, so other options may follow, and the record omits this try
  [ "$host" != 0 ] || rm -f "$run"/{options,batch,chosen,precision,starts.jsonl}
  [ ! -e "$run/$log" ] || mv -f "$run/$log" "$run/failed.$log"
}

forget_translations() {  # of an earlier checkpoint, or of other ones, that STEPS has scored before the training ended
  rm -f "$run"/{average.pt,"translations.$target",generate.log,score.txt,run.json}
}

refuse_unwritable() {  # folder that may not exist yet, remedy
  local there=$1
  while [ ! -e "$there" ]; do there=$(dirname "$there"); done
  [ -w "$there" ] || fail "$(realpath "$there") cannot be written; $2"
}

refuse_another_run() {
  local other="name another folder: OUTPUT=..."
  [ ! -f "$run" ] || fail "$run is a file; $other"
  refuse_unwritable "$run" "$other"
  [ "$host" != 0 ] || begun || return 0  # other hosts join a training that may have no checkpoint yet
  ! only_average || [[ " ${STEPS:-train} " != *" train "* ]] ||
    fail "$run has an average.pt without its checkpoints, which a new training would replace; move it, or $other"
  differs() { [ -s "$run/$1" ] && [ "$(cat "$run/$1")" != "$2" ]; }  # file of the run, what it would be now
  ! differs options "$(options)" || fail "$run contains a run with other options (see $run/options); $other"
  ! differs batch "${BATCH:-}" || fail "$run contains a run with BATCH=$(cat "$run/batch"); $other"
  [ -e "$run/trained" ] || only_average || return 0  # of other checkpoints another average can be made
  ! differs chosen "${chosen:-}" || fail "$run was trained for $(cat "$run/chosen"); $other"
  [ -z "$precision" ] || ! differs precision "$precision" ||
    fail "$run was trained with --autocast $(cat "$run/precision"); $other"
}

open_run() {  # before anything is written to the folder
  [ -z "$dry_run" ] || return 0
  mkdir -p "$run"
  if [ "$host" = 0 ]; then  # other hosts join the first one's training
    exec 9<> "$run/.lock"  # also for reading, because it names its holder
    lock "$run"
  fi
  refuse_another_run
  if [ "$host" = 0 ]; then
    # With the same options, other hosts may have read the precision already.
    begun || { [ "${NODES:-1}" != 1 ] &&
      [ "$(cat "$run"/{options,batch} 2>/dev/null)" = "$(options; echo "${BATCH:-}")" ]; } || forget_try
    options > "$run/options.partial"
    mv "$run/options.partial" "$run/options"
    [ -z "${BATCH:-}" ] || echo "$BATCH" > "$run/batch"
    if [ -n "${chosen:-}" ] && [ "$(cat "$run/chosen" 2>/dev/null)" != "$chosen" ]; then
      [ ! -e "$run/chosen" ] || forget_translations
      echo "$chosen" > "$run/chosen"
    fi
    python examples/record.py begin "$run" "$data/data-bin" "${typed[@]}"
  fi
}
