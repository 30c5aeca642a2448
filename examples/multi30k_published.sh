#!/usr/bin/env bash
# Multi30k as published with Wu et al. 2021, "Good for Misconceived Reasons" (github.com/LividWo/Revisit-MMT): already
# lower-cased, tokenised and in subwords. It is used unchanged, with their settings and their scoring.
#
#   MIRROR=FOLDER FAMILY=vaswani_transformer TARGET=de examples/multi30k_published.sh [--dry-run] [options]
#
# The folder is their data/multi30k-en-de, or multi30k-en-fr with TARGET=fr (train.en, train.de, valid.*, test.2016.*,
# optionally with .gz). By default their repository is cloned. recipe.sh explains UPDATES, SEED and others.
set -euo pipefail

corpus=multi30k_published source=${SOURCE:-en} target=${TARGET:-de} size=tiny
preparation=(--lowercase)  # the text is lower-cased already, and is not changed
# The last two are defaults of their fairseq; ours does not clip, and recipe.sh has 1e-9.
training=(--share-all-embeddings --dropout 0.3 --patience 10 --clip-norm 25 --adam-eps 1e-8)
batch=8192 rate=5e-3 warmup=2000 updates=8000  # two GPUs of 4096 tokens
checkpoints=epoch average=10
generation=(--beam 5)

. "$(dirname "$0")/recipe.sh"
[ "$source" != "$target" ] || fail "SOURCE and TARGET are both $source: give two languages"

copy_published() {  # source and target language, folder with their files, folder to write to
  local name
  for name in {train,valid,test.2016}.{"$1","$2"}; do
    if [ -e "$3/$name.gz" ]; then gunzip -c "$3/$name.gz"
    elif [ -e "$3/$name" ]; then cat "$3/$name"
    else echo "$3/$name and $name.gz are missing: add one of them" >&2; exit 1; fi > "$4/${name/.2016/}"
  done
}
helpers+=(lock make_once binarised copy_published)

prepare() {
  local texts=${MIRROR:-data/Revisit-MMT/data/multi30k-en-${source#en}${target#en}}
  [ -n "${MIRROR:-}" ] || run make_once data/Revisit-MMT git clone --depth 1 https://github.com/LividWo/Revisit-MMT
  run make_once "$data" binarised "$source" "$target" --joined-dictionary -- \
    copy_published "$source" "$target" "$texts"
}

score() {
  run tail -n 1 "$run/generate.log"  # the score that they publish
  run show_and_keep "$run/score.txt" python -m user_dir.tools.score "$run/generate.log" "${reference[@]}"
}

follow_plan "Wu et al. 2021, en-de, their transformer_tiny (4 + 4 layers, d_model 128), test2016, BLEU of tokens: \
41.02 (as fairseq-generate prints it)"
