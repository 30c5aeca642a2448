#!/usr/bin/env bash
# IWSLT14 German-English, talks: the usual split and settings. Lower-cased, one BPE of 10,000 merges, every 23rd pair
# for validation (7,283 of 167,522), the five test sets together (6,750).
#
#   FAMILY=vaswani_transformer examples/iwslt14.sh [--dry-run] [options of fairseq-train]
#
# SOURCE=en TARGET=de selects the other direction; recipe.sh explains the other variables.
set -euo pipefail

corpus=iwslt14 source=${SOURCE:-de} target=${TARGET:-en} size=iwslt_de_en
preparation=(--lowercase --bpe-operations 10000)
training=(--share-decoder-input-output-embed --dropout 0.3 --weight-decay 1e-4 --adam-eps 1e-8)
batch=4096 rate=5e-4 warmup=4000 updates=50000  # one GPU; the number of updates is our choice, about 50 epochs
checkpoints=epoch average=10
generation=(--beam 5)

. "$(dirname "$0")/recipe.sh"
follow_plan "Reported for the plain Transformer, de-en, BLEU of (lower-cased) tokens: \
35.64 +- 0.23 over five seeds (Transformer-Clinic; examples/iwslt14.md has its other settings)"
