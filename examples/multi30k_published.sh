#!/usr/bin/env bash
# Multi30k as published with Wu et al. 2021, "Good for Misconceived Reasons" (github.com/LividWo/Revisit-MMT): already
# lower-cased, tokenised and in subwords. It is used as it is, with their settings, and scored as they do.
#
#   MIRROR=FOLDER FAMILY=vaswani_transformer examples/multi30k_published.sh [--dry-run] [options of fairseq-train]
#
# The folder is their data/multi30k-en-de (train.en, train.de, valid.*, test.2016.*, each perhaps with .gz). Without it
# their repository is cloned. recipe.sh explains UPDATES, SEED and others.
set -euo pipefail

corpus=multi30k_published source=${SOURCE:-en} target=${TARGET:-de} size=tiny
preparation="--lowercase"  # it is so; nothing else is done to it
training="--share-all-embeddings --dropout 0.3 --patience 10"
batch=8192 rate=5e-3 warmup=2000 updates=8000  # two GPUs of 4096 tokens
checkpoints=epoch average=10
generation="--beam 5"

. "$(dirname "$0")/recipe.sh"

prepare='mkdir -p data
(
  python data-prep/locking.py 9 $data
  [ ! -e $data/data-bin/test.'$source-$target.$target'.idx ] || exit 0
  rm -rf $data.partial $data
  from=$MIRROR
  if [ -z "$from" ]; then
    git clone --depth 1 https://github.com/LividWo/Revisit-MMT $data.partial/repository
    from=$data.partial/repository/data/multi30k-en-de
  fi
  names=$(echo {train,valid,test.2016}.{'$source,$target'})
  for name in $names; do
    [ -e "$from/$name" ] || [ -e "$from/$name.gz" ] || { echo "$from/$name: neither it nor $name.gz is there" >&2; exit 1; }
  done
  mkdir -p $data.partial/texts
  for name in $names; do
    if [ -e "$from/$name.gz" ]; then gunzip -c "$from/$name.gz"; else cat "$from/$name"; fi > $data.partial/texts/$name
  done
  fairseq-preprocess --source-lang '$source' --target-lang '$target' --joined-dictionary --workers 2 \
    --trainpref $data.partial/texts/train --validpref $data.partial/texts/valid --testpref $data.partial/texts/test.2016 \
    --destdir $data.partial/data-bin
  mv $data.partial $data
) 9> $data.lock'
score="tail -n 1 \$run/generate.log; $score"

follow_plan "Wu et al. 2021, en-de, fairseq's transformer_tiny, test2016, BLEU of tokens: 41.02 (as fairseq-generate prints it)"
