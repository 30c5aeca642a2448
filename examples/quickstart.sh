#!/usr/bin/env bash
# From nothing to a scored translation in ten minutes on two cores: installs missing packages, prepares the Tatoeba
# corpus, trains a small model, averages its last checkpoints, exports the average to CTranslate2 if that computes it,
# translates the test set, scores it and draws two pictures. The last line shows how to translate your own sentence.
# Finished steps are skipped.
#
#   examples/quickstart.sh [--dry-run] [options of fairseq-train, e.g. --encoder-layers 4 --seed 2]
#
# --dry-run prints the commands. Variables and their defaults:
#   ARCH=vaswani_transformer_tiny   any architecture of the README; a tiny one gets 3 + 2 layers with d_ff 512 here:
#                                   in seven minutes they see more text than 4 + 4 layers and translate better
#   FAMILY=                         as in other recipes: FAMILY=relative_transformer is ARCH=relative_transformer_tiny
#   SEED=1                          another seed needs an OUTPUT of its own
#   CORPUS=tatoeba                  or bible, German and English (SOURCE=de): longer sentences, from another server
#   SOURCE=fr TARGET=en             Tatoeba has French and Spanish, each with English
#   UPDATES=2400                    number of updates ...
#   MINUTES=7                       ... and the time after which training stops in any case
#   PAIRS=                          train on only this many sentence pairs, for a first try
#   VALIDATE=                       updates between validations, which also save (default: none, because it costs time)
#   MIRROR=                         folder with the corpus's files, if they cannot be fetched
#   OUTPUT=runs/ARCH.SOURCE-TARGET  checkpoints, logs and translations; the data go to data/
#   INSTALL= PYTHON=python3         INSTALL=no uses the active environment as it is; else PYTHON makes .venv
#
# fairseq-train --help lists general options; those of our models, task and optimizer are in user_dir/README.md.
# If there are several GPUs, one is used, with GPUS=0 none; --distributed-world-size 4 uses four, with a batch four
# times as large.
set -euo pipefail

corpus=${CORPUS:-tatoeba} source=${SOURCE:-fr} target=${TARGET:-en}
arch=${ARCH:-${FAMILY:-vaswani_transformer}_tiny}
UPDATES=${UPDATES:-2400} MINUTES=${MINUTES:-7} PAIRS=${PAIRS:-} VALIDATE=${VALIDATE:-}
preparation=(--bpe-operations 4000 ${PAIRS:+--max-pairs "$PAIRS"})
training=(--arch "$arch" ${SEED:+--seed "$SEED"})
case $arch in *_tiny) training+=(--encoder-layers 3 --decoder-layers 2 --encoder-ffn-embed-dim 512) ;; esac
training+=(--encoder-normalize-before --decoder-normalize-before --share-all-embeddings --dropout 0
  --criterion fused_label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 1000
  --optimizer fused_adam --adam-betas '(0.9, 0.98)' --clip-norm 1
  --lr 3e-3 --lr-scheduler polynomial_decay --warmup-updates 250)
# A hypothesis's log-probability is divided by length^lenpen (Vaswani et al. 2017 divide by ((5 + length)/6)^0.6;
# fairseq's --lenpen 0.6 makes longer translations than that). On this corpus's valid set 1 to 1.5 score best.
generation=(--tokenizer moses --beam 4 --lenpen 1 --max-len-a 1 --max-len-b 50)

. "$(dirname "$0")/shared/steps.sh"
have_no_effect BATCH MAX_TOKENS AVERAGE CHOOSE VALID_PAIRS SMOKE STEPS SIZE TASK TREEBANK PARSED MERGES PATIENCE \
  PREPARATION PROCESSES NODES SEEDS FAMILIES
# The recipes of other corpora prepare these otherwise, in the same folders.
[[ $corpus == tatoeba || $corpus == bible ]] || fail "CORPUS=$corpus: choose tatoeba or bible, or another recipe"
[ -z "${ARCH:-}" ] || [ -z "${FAMILY:-}" ] || fail "ARCH=$ARCH and FAMILY=$FAMILY: both name the model; omit one"
known=$("${PYTHON:-python3}" "$project/user_dir/families.py" "$arch" 2>&1) || fail "there is no architecture $known"
[[ $arch != transformer_* ]] || fail "$arch is fairseq's own, which other recipes train; choose a family of the README"
at_least 1 UPDATES ${PAIRS:+PAIRS} ${VALIDATE:+VALIDATE}
at_least 0 ${GPUS:+GPUS} ${SEED:+SEED}
[ "${GPUS:-1}" -le 1 ] || fail "GPUS=$GPUS: one GPU is used; omit GPUS, and for more add --distributed-world-size $GPUS"
[[ $MINUTES =~ ^[0-9]*\.?[0-9]+$ && $MINUTES =~ [1-9] ]] ||  # fairseq takes 0 for no limit
  fail "MINUTES is $MINUTES, and has to be a number above 0, such as 7 or 0.5"

data=data/$corpus.$source-$target${PAIRS:+.$PAIRS}
run=${OUTPUT:-runs/$arch.$source-$target}
[[ $run != *:* ]] || fail "OUTPUT=$run: fairseq takes no colon in a path; name another folder"
log=train.log updates=$UPDATES
interval=${VALIDATE:-$((updates < 4 ? 1 : updates < 100 ? updates / 4 : 25))}  # updates from one checkpoint to the next
training+=(--total-num-update "$updates" --max-update "$updates" --branch-frozen-updates $((updates / 6)))
running=(--distributed-world-size 1 --stop-time-hours "$(LC_ALL=C awk "BEGIN { print $MINUTES / 60 }")"
  --log-interval $((updates < 100 ? interval : 50))
  --no-epoch-checkpoints --save-interval-updates "$interval" --keep-interval-updates 4)
[ -n "$VALIDATE" ] || running+=(--disable-validation)
if [ "${GPUS:-}" = 0 ]; then
  export CUDA_VISIBLE_DEVICES=
  running+=(--cpu)
fi
launch=(env "${malloc[@]}" fairseq-train)
averaged=("$run" --last 4 --by update --or-fewer)

draw() {
  done_before "$run/training.png" ||
    run python -m user_dir.tools.plot_training "$run/train.log" --output "$run/training.png"
  done_before "$run/attention.png" ||
    run python -m user_dir.tools.plot_attention "$run/average.pt" --sentence "$sentence" \
      --output "$run/attention.png"
}

score() {
  run show_and_keep "$run/score.txt" \
    sacrebleu "$data/raw/test.$target" --input "$run/translations.$target" --format text --width 2
}

times=""
stage() {  # title, step [remedy if it fails]: runs it and notes its time
  local start=$SECONDS
  [ -n "$dry_run" ] || echo "== $1"
  step "${@:2}"
  times+=$(printf '%6d s  %s' $((SECONDS - start)) "$1")$'\n'
}

extras=ctranslate2 remedy=""
[ -n "$dry_run" ] || silent=yes
begin_plan
[ "$corpus${MIRROR:-}" != tatoeba ] || remedy="; another corpus, from another server: CORPUS=bible SOURCE=de $0"
stage "prepare the corpus: $data" prepare "$remedy"
open_run
stage "train: $run" train
if [ -z "$dry_run" ] && grep -q "Stopping training due to cumulative_training_time" "$run/train.log"; then
  echo "training stopped before $updates updates, when its time was over; for all, run the same command with" \
    "MINUTES=60 OUTPUT=another-folder before it"
fi
stage "average the last checkpoints, and export the average" average
stage "translate the test set with beam 4" translate
sentence="a sentence"
if [ -e "$data/raw/test.$source" ]; then  # a sentence without special characters of the shell
  sentence=$(grep -m 1 -v '["$`\\!]' "$data/raw/test.$source" || echo "$sentence")
fi
stage "draw two pictures" draw
if [ -n "$dry_run" ]; then
  step score
  step record
  exit
fi

echo "== ten samples"
first() { head -n 10 "$1"; }
paste <(first "$data/raw/test.$source") <(first "$run/translations.$target") <(first "$data/raw/test.$target") |
  awk -F '\t' '{ printf "source       %s\ntranslation  %s\nreference    %s\n\n", $1, $2, $3 }'
echo "== score"
step score
step record
echo "== time"
echo "$times$(printf '%6d s  in all' $SECONDS)"
echo "== files"
echo "model         $run/average.pt
translations  $run/translations.$target
logs          $run/train.log, $run/generate.log
record        $run/run.json (versions, commit, command, machine, speed, score)
pictures      $run/training.png (loss and speed), $run/attention.png (where the model looks while it translates)
data          $data (attribution: $data/ATTRIBUTION)"
echo "== translate a sentence of your own, or many: --input FILE --output FILE"
how_to_translate "$run" "$sentence"
