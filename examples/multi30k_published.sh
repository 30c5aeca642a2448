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
preparation=""
training="--share-all-embeddings --dropout 0.3 --patience 10"
batch=8192 rate=5e-3 warmup=2000 updates=8000  # two GPUs of 4096 tokens
checkpoints=epoch average=10
generation="--beam 5"
detokenised_score=""

. "$(dirname "$0")/recipe.sh"

prepare='[ -e $data/data-bin/test.'$source-$target.$target'.idx ] || {
  rm -rf $data; mkdir -p $data/texts
  from=$MIRROR
  [ -n "$from" ] || { git clone --depth 1 https://github.com/LividWo/Revisit-MMT $data/repository; from=$data/repository/data/multi30k-en-de; }
  for name in {train,valid,test.2016}.{'$source,$target'}; do
    if [ -e "$from/$name.gz" ]; then gunzip -c "$from/$name.gz"; else cat "$from/$name"; fi > $data/texts/$name
  done
  fairseq-preprocess --source-lang '$source' --target-lang '$target' --joined-dictionary --destdir $data/data-bin \
    --trainpref $data/texts/train --validpref $data/texts/valid --testpref $data/texts/test.2016 --workers 2
}'
# The last line that fairseq-generate prints is the published kind of score; sacrebleu's agrees with it.
translate=${translate/ --tokenizer moses/}
translate=${translate%$'\n'*}
score="tail -n 1 \$run/generate.log | tee \$run/score.txt
sed 's/@@ //g' \$data/texts/test.2016.$target |
  sacrebleu /dev/stdin --input \$run/tokens.$target --tokenize none --force --format text | tee -a \$run/score.txt"

follow_plan "Wu et al. 2021, en-de, fairseq's transformer_tiny, two GPUs, at most 8000 updates: BLEU4 = 41.02"
