#!/usr/bin/env bash
# Multi30k, descriptions of images, from raw text: 29,000 pairs, en-de, de-en, en-fr or fr-en. Lower-cased, with the
# settings of Wu et al. 2021 except clipping and Adam's epsilon, which multi30k_published.sh has, with their
# preprocessing.
#
#   FAMILY=vaswani_transformer SOURCE=en TARGET=de examples/multi30k.sh [--dry-run] [options of fairseq-train]
#
# recipe.sh explains the other variables.
set -euo pipefail

corpus=multi30k source=${SOURCE:-en} target=${TARGET:-de} size=tiny
preparation=(--lowercase --bpe-operations 10000)
training=(--share-all-embeddings --dropout 0.3 --patience 10)
batch=8192 rate=5e-3 warmup=2000 updates=8000  # two GPUs of 4096 tokens
checkpoints=epoch average=10
generation=(--beam 5)

. "$(dirname "$0")/recipe.sh"
follow_plan "Wu et al. 2021, en-de, their transformer_tiny, their own preprocessing, test2016, \
BLEU of tokens: 41.02"
