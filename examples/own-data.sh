#!/usr/bin/env bash
# Makes a model from two text files of your own, whose lines translate each other: cleans the text and splits off test
# sentences, trains with the settings for so many pairs until the loss has not fallen in PATIENCE validations, averages
# the last checkpoints, translates, scores, and prints the command that translates a sentence.
#
#   examples/own-data.sh text/mine.fr text/mine.en [--dry-run] [options of fairseq-train]
#
# The endings of the files' names are the languages. The family, sizes, merges, dropout and rates by the number of pairs
# are those of own-data.md. Variables that recipe.sh does not have or has other defaults for:
#   FAMILY=                     relative_transformer from 5,000 to 100,000 pairs, else vaswani_transformer
#   PAIRS=                      choose the settings for so many pairs (default: those of the files), to continue a model
#                               of so many; PREPARATION="--max-pairs N" trains on fewer
#   PATIENCE=10                 validations, one after each epoch, or after several that have 50 updates together;
#                               from 100,000 pairs one after 1,249 updates
#   PREPARATION=                options of data-prep/prepare.py, such as "--lowercase --max-ratio 5"; paths are
#                               relative to the project and have no spaces
set -euo pipefail
. "$(dirname "$0")/shared/supervised.sh"

usage() { echo "own-data.sh: $1: name two text files, such as text/mine.fr text/mine.en" >&2; exit 1; }
[ $# -ge 2 ] || usage "$# arguments"
for text in "$1" "$2"; do
  [ -f "$text" ] && [ -r "$text" ] || usage "there is no file $text that can be read"
  [[ ${text##*/} == *.* ]] || usage "$text has no ending that says its language"
done
texts=("$(realpath -- "$1")" "$(realpath -- "$2")") source=${1##*.} target=${2##*.}
[ "$source" != "$target" ] || usage "both files end in .$source instead of their languages"
shift 2
[[ ${PAIRS:-1} =~ ^[1-9][0-9]{0,8}$ ]] ||
  { echo "own-data.sh: PAIRS is $PAIRS: give a whole number from 1 to 999999999" >&2; exit 1; }
# Without a UTF-8 locale wc counts no word of Cyrillic or Devanagari.
read -r lines words <<< "$(awk '{ words += NF } END { printf "%d %.0f", NR, words }' "${texts[0]}")"
read -r -d "" -a preparation <<< "${PREPARATION:-}" || true
in_project() { (cd "$(realpath "$(dirname "$0")/..")" && "$@"); }  # where the steps run
chosen_by() { local word; echo "$*"; for word in "$@"; do [ ! -f "$word" ] || cat "$word"; done; }
# Other text of the same name, or other subwords, would replace the data of a model that is there already.
checksum=$({ cat "${texts[@]}"; in_project chosen_by "${preparation[@]}" ${PAIRS:+PAIRS="$PAIRS"}; } | cksum)
checksum=${checksum%% *}
name=$(basename "${texts[0]%.*}").$source-$target.$checksum
name=${name//[:\$]/_}  # fairseq takes no colon and no dollar in a path

extras=ctranslate2  # answers in a second, where CTranslate2 computes the family
corpus=own dataset=own.$name checkpoints=epoch average=5 generation=(--beam 5 --max-len-a 1) remedy=""
# An epoch may have thousands of updates, and the last one rarely ends. At the end of an epoch fairseq keeps no
# checkpoint by update, but few epochs end at a multiple of a prime.
[ "$lines" -lt 100000 ] || checkpoints=1249
pairs=${PAIRS:-$lines}
if [ "$pairs" -lt 20000 ]; then  # as TED talks (ted.md)
  size=tiny merges=4000 dropout=0.3 batch=2048 rate=2e-3 warmup=1000 updates=40000
  shape=(--encoder-normalize-before --decoder-normalize-before)  # post-norm models ignored the source
elif [ "$pairs" -lt 100000 ]; then  # as Multi30k (multi30k.md)
  size=tiny merges=10000 dropout=0.3 batch=8192 rate=5e-3 warmup=2000 updates=8000
elif [ "$pairs" -lt 1000000 ]; then  # as IWSLT14 (iwslt14.md)
  size=iwslt_de_en merges=10000 dropout=0.3 batch=4096 rate=5e-4 warmup=4000 updates=50000
else  # as WMT14 (wmt14.md)
  size=base merges=32000 dropout=0.1 batch=25000 rate=7e-4 warmup=4000 updates=100000
fi
# Relative positions gain BLEU here. CTranslate2 does not compute their tables, so nmt-translate starts later.
if [ "$pairs" -ge 5000 ] && [ "$pairs" -lt 100000 ]; then FAMILY=${FAMILY:-relative_transformer}; fi
like=$(sed -nE 's/.* --like[ =]([^ ]+) .*/\1/p' <<< " ${preparation[*]} ")
prepared_with() { [ -n "$like" ] && in_project grep -qs "$1" "$like/manifest.json"; }
[ -n "$like" ] || preparation=(--bpe-operations "$merges" "${preparation[@]}")
# prepare.py knows it; recipe.sh translates and scores as these options say.
! prepared_with '"lowercase": true' || preparation+=(--lowercase)
! prepared_with '"tokenise": false' || preparation+=(--pretokenised)
share=--share-all-embeddings
if [[ " ${preparation[*]} " == *" --separate-bpe "* ]] ||
  { [ -n "$like" ] && ! in_project test -e "$like/bpe/codes"; }; then
  share=--share-decoder-input-output-embed
fi
PATIENCE=${PATIENCE:-10}
training=("$share" --dropout "$dropout" --patience "$PATIENCE")
[ "$pairs" -ge 20000 ] || training+=(--bpe-dropout 0.1)

. "$(dirname "$0")/recipe.sh"
[ -z "${MIRROR:-}" ] || fail "MIRROR=$MIRROR has no effect, because nothing is fetched: omit it"
for option in output source-lang target-lang; do
  [[ " ${preparation[*]}" != *" --$option"[\ =]* ]] || fail "PREPARATION: omit --$option, which the recipe sets"
done
at_least 1 PATIENCE  # fairseq takes 0 for no limit
if [ "$checkpoints" = epoch ]; then
  most=$(sed -nE 's/.* --max-pairs[ =]0*([0-9]{1,9}) .*/\1/p' <<< " ${preparation[*]} ")
  [ "${most:-$lines}" -ge "$lines" ] || words=$((words * most / lines))
  # An epoch of 500 pairs has three updates: with a validation after each, patience would end while the rate rises.
  epochs=$((50 * BATCH / (words * 4 / 3 + 1) + 1))  # a word is about 4/3 subwords
else  # by update alone, also where an epoch ends
  epochs=1000000
  running+=(--validate-interval-updates "$interval")
fi
running+=(--save-interval "$epochs" --validate-interval "$epochs")

prepare() {
  run python data-prep/prepare.py --train "${texts[@]}" --source-lang "$source" --target-lang "$target" \
    --output "$data" "${preparation[@]}"
  # fairseq-generate would refuse it, after the training.
  [ -n "$dry_run" ] || awk 'NF > 1023 { print FILENAME ", line " FNR ": it has " NF " subwords, and the models take " \
    "1,023: shorten this line of the test set and its translation"; long = 1 } END { exit long }' \
    "$data/bpe/test.$source" "$data/bpe/test.$target" >&2
}

follow_plan "nothing published; your sentences, with $run/average.pt:"
if wanted average; then how_to_translate "$run/average.pt" "a sentence"; fi
