#!/usr/bin/env bash
# Multi30k as published with Wu et al. 2021, "Good for Misconceived Reasons" (github.com/LividWo/Revisit-MMT): already
# lower-cased, tokenised and in subwords. It is used unchanged, with their settings and their scoring.
#
#   MIRROR=FOLDER FAMILY=vaswani_transformer TARGET=de examples/multi30k_published.sh [--dry-run] [fairseq-train's options]
#
# The folder is their data/multi30k-en-de, or multi30k-en-fr with TARGET=fr (train.en, train.de, valid.*, test.2016.*,
# optionally with .gz). By default their repository is cloned. recipe.sh explains UPDATES, SEED and others.
set -euo pipefail

corpus=multi30k_published source=${SOURCE:-en} target=${TARGET:-de} size=tiny
preparation=(--lowercase)  # the text is lower-cased already, and is not changed
# The last two are defaults of their fairseq, but not of ours.
training=(--share-all-embeddings --dropout 0.3 --patience 10 --clip-norm 25 --adam-eps 1e-8)
batch=8192 rate=5e-3 warmup=2000 updates=8000  # two GPUs of 4096 tokens
checkpoints=epoch average=10
generation=(--beam 5)

. "$(dirname "$0")/recipe.sh"

binarise_published() {  # folder of the data, source and target language [folder with their files]
  local data=$1 texts=$1.partial/texts from=${4:-} name
  (
    set -e
    lock "$data"
    [ ! -e "$data/data-bin/test.$2-$3.$3.idx" ] || exit 0
    rm -rf "$data.partial" "$data"
    if [ -z "$from" ]; then
      git clone --depth 1 https://github.com/LividWo/Revisit-MMT "$data.partial/repository"
      from=$data.partial/repository/data/multi30k-en-$3
      [ -d "$from" ] || from=$data.partial/repository/data/multi30k-en-$2
    fi
    for name in {train,valid,test.2016}.{"$2","$3"}; do
      [ -e "$from/$name" ] || [ -e "$from/$name.gz" ] ||
        { echo "$from/$name and $name.gz are missing: add one of them" >&2; exit 1; }
    done
    mkdir -p "$texts"
    for name in {train,valid,test.2016}.{"$2","$3"}; do
      if [ -e "$from/$name.gz" ]; then gunzip -c "$from/$name.gz"; else cat "$from/$name"; fi > "$texts/$name"
    done
    fairseq-preprocess --source-lang "$2" --target-lang "$3" --joined-dictionary --workers 2 \
      --trainpref "$texts/train" --validpref "$texts/valid" --testpref "$texts/test.2016" \
      --destdir "$data.partial/data-bin"
    mv "$data.partial" "$data"
  ) 9<> "$data.lock"
}
helpers+=(lock binarise_published)

prepare() {
  run mkdir -p data
  run binarise_published "$data" "$source" "$target" ${MIRROR:+"$MIRROR"}
}

score() {
  run tail -n 1 "$run/generate.log"  # the score that they publish
  run show_and_keep "$run/score.txt" python -m user_dir.tools.score "$run/generate.log" "${reference[@]}"
}

follow_plan "Wu et al. 2021, en-de, their transformer_tiny (4 + 4 layers, d_model 128), test2016, BLEU of tokens: \
41.02 (as fairseq-generate prints it)"
