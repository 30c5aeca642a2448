#!/usr/bin/env bash
# From nothing to a scored translation in ten minutes on two cores: installs what is missing, prepares the Tatoeba
# corpus, trains a small model, averages its last checkpoints, translates the test set, scores it and draws two pictures;
# then it says how to translate a sentence of your own. What is done is not done again.
#
#   examples/quickstart.sh [options of fairseq-train, e.g. --encoder-layers 4 --seed 2]
#
# Variables and their defaults:
#   ARCH=vaswani_transformer_tiny   any architecture of the README; of a tiny one 3 + 2 layers are trained, with d_ff 512:
#                                   in seven minutes they see more text than 4 + 4 and translate better
#   SOURCE=fr TARGET=en             the corpus has French, Spanish and English
#   UPDATES=2400                    updates to train ...
#   MINUTES=7                       ... and the time after which training stops in any case
#   PAIRS=                          train on that many sentence pairs only, for a first try
#   OUTPUT=runs/ARCH.SOURCE-TARGET  checkpoints, logs and translations; the data go to data/
set -euo pipefail
extras=plot
. "$(dirname "$0")/environment.sh"
from=$PWD
cd "$project"

arch=${ARCH:-vaswani_transformer_tiny} source=${SOURCE:-fr} target=${TARGET:-en} updates=${UPDATES:-2400} pairs=${PAIRS:-}
output=${OUTPUT:-runs/$arch.$source-$target}
data=data/tatoeba.$source-$target${pairs:+.$pairs}
[[ $updates =~ ^[1-9][0-9]*$ ]] || fail "UPDATES=$updates: give a whole number, at least 1"
every=$((updates < 4 ? 1 : updates < 100 ? updates / 4 : 25))  # updates from one checkpoint to the next: the last four are averaged
# A hypothesis' log-probability is divided by length^lenpen (Vaswani et al. 2017 divide by ((5 + length)/6)^0.6, and fairseq's
# --lenpen 0.6 makes translations shorter than that). 1 had the best BLEU on this corpus's valid set of 0.6, 1, 1.2, 1.5, 2, 2.5 and 3.
lenpen=1
mkdir -p "$output"
times=""

stage() {  # title, command …: runs the command and notes how long it took
  local start=$SECONDS title=$1; shift
  echo "== $title"
  "$@"
  times+=$(printf '%6d s  %s' $((SECONDS - start)) "$title")$'\n'
}

done_before() { [ -e "$1" ] && echo "$1 is there"; }

prepare() {
  python data-prep/prepare.py tatoeba --source-lang "$source" --target-lang "$target" --output "$data" \
    --bpe-operations 4000 ${pairs:+--max-pairs "$pairs"}
}

train() {  # options of fairseq-train
  local options="$arch $data $updates $*"
  if [ -e "$output/options" ] && [ "$(cat "$output/options")" != "$options" ]; then
    fail "$output holds a run with other options ($(cat "$output/options")). Name another folder: OUTPUT=..."
  fi
  echo "$options" > "$output/options"
  done_before "$output/average.pt" && return
  local sizes=()  # empty, it is unbound to `set -u` before bash 4.4, hence how it is written below
  case $arch in *_tiny) sizes=(--encoder-layers 3 --decoder-layers 2 --encoder-ffn-embed-dim 512) ;; esac
  # --update-epoch-batch-itr: a run that goes on in a later epoch meets the batches that it would have met (see recipe.sh).
  # glibc hands large blocks back to the system after each use and gets them again page by page: 6 to 20% of a step here.
  MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 MALLOC_ARENA_MAX=1 \
  fairseq-train "$data/data-bin" --user-dir user_dir --arch "$arch" ${sizes[@]+"${sizes[@]}"} \
    --encoder-normalize-before --decoder-normalize-before --share-all-embeddings --dropout 0 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 1000 \
    --optimizer fused_adam --adam-betas '(0.9, 0.98)' --branch-frozen-updates $((updates / 6)) --clip-norm 1 \
    --lr 5e-3 --lr-scheduler polynomial_decay --warmup-updates 250 --total-num-update "$updates" \
    --max-update "$updates" --stop-time-hours "$(python -c "print(${MINUTES:-7} / 60)")" \
    --save-dir "$output" --no-epoch-checkpoints --save-interval-updates "$every" --keep-interval-updates 4 \
    --update-epoch-batch-itr True --disable-validation --log-format simple --log-interval $((updates < 100 ? every : 50)) \
    --autocast "$(python -m user_dir.tools.precision)" "$@" 2>&1 |
    tee "$output/train.log" | sed -unE \
    's/.*train_inner.* loss=([^,]*), .*ppl=([^,]*), wps=([^,]*),.* num_updates=([^,]*), .* wall=([0-9]*).*/update \4 of '"$updates"': loss \1, perplexity \2, \3 words\/s, \5 s/p' ||
    { tail -n 20 "$output/train.log" >&2; fail "training failed; above is the end of $output/train.log"; }
}

average() {
  done_before "$output/average.pt" && return
  local saved=("$output"/checkpoint_*_*.pt)  # fewer than four after few updates, or where training was stopped by the clock
  if [ -e "${saved[0]}" ]; then saved=("$output" --by update --last $((${#saved[@]} < 4 ? ${#saved[@]} : 4))); else saved=("$output/checkpoint_last.pt"); fi
  python -m user_dir.tools.average_checkpoints "${saved[@]}" --output "$output/average.pt"
}

translate() {
  done_before "$output/translations.$target" && return
  # Without --required-batch-size-multiple 1 fairseq leaves out the last sentences of a set whose size is no multiple of 8.
  fairseq-generate "$data/data-bin" --source-lang "$source" --target-lang "$target" --user-dir user_dir \
    --path "$output/average.pt" --beam 4 --lenpen "$lenpen" --max-len-a 1 --max-len-b 50 \
    --max-tokens 6000 --required-batch-size-multiple 1 --remove-bpe --tokenizer moses > "$output/generate.log" 2> "$output/generate.err" ||
    { tail -n 20 "$output/generate.err" >&2; fail "translating failed; above is the end of $output/generate.err"; }
  # D-NUMBER <tab> score <tab> detokenised translation, longest sentences first
  grep '^D-' "$output/generate.log" | sort -t- -k2 -n | cut -f3- > "$output/translations.partial"
  mv "$output/translations.partial" "$output/translations.$target"
}

draw() {
  done_before "$output/training.png" || python -m user_dir.tools.plot_training "$output/train.log" --output "$output/training.png"
  done_before "$output/attention.png" ||
    python -m user_dir.tools.plot_attention "$output/average.pt" --sentence "$sentence" --lenpen "$lenpen" --output "$output/attention.png"
}

stage "prepare the corpus: $data" prepare
stage "train: $output" train "$@"
stage "average the last checkpoints" average
stage "translate the test set with beam 4" translate
sentence=$(grep -m 1 -v '["$`\\!]' "$data/raw/test.$source")  # of which no character means something to a shell
stage "draw two pictures" draw

echo "== ten samples"
first() { head -n 10 "$1"; }
paste <(first "$data/raw/test.$source") <(first "$output/translations.$target") <(first "$data/raw/test.$target") |
  awk -F '\t' '{ printf "source       %s\ntranslation  %s\nreference    %s\n\n", $1, $2, $3 }'
echo "== score"
sacrebleu "$data/raw/test.$target" --input "$output/translations.$target" --format text | tee "$output/score.txt"
echo "== time"
echo "$times$(printf '%6d s  in all' $SECONDS)"
echo "== files"
echo "model         $output/average.pt
translations  $output/translations.$target
logs          $output/train.log, $output/generate.log
pictures      $output/training.png (loss and speed), $output/attention.png (where the model looks while it translates)
data          $data (attribution: $data/ATTRIBUTION)"
echo "== translate a sentence of your own, or many: --input FILE --output FILE"
command=$([ -z "$own_environment" ] || echo .venv/bin/)nmt-translate
[ "$from" -ef "$project" ] || echo "cd $project"
echo "$command $output/average.pt --lenpen $lenpen \"$sentence\""
