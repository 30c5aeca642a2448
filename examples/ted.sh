#!/usr/bin/env bash
# TED talks into English or from it: 11,233 pairs in Galician, 6,414 in Azerbaijani (Qi et al. 2018), in Moses tokens as
# published with the assignments of CMU's course 11-731. By default the model, rate and dropout are those of fairseq's
# recipe for IWSLT14. With so few pairs small post-norm models ignored the source: examples/ted.md has options of
# pre-norm ones.
#
#   SOURCE=gl TARGET=en FAMILY=vaswani_transformer examples/ted.sh [--dry-run] [options of fairseq-train]
#
# One of SOURCE and TARGET is en, the other gl or az; MERGES=4000 sets BPE's merges for both languages.
# recipe.sh explains the other variables.
set -euo pipefail

source=${SOURCE:-gl} target=${TARGET:-en} MERGES=${MERGES:-4000}
case $source-$target in
  gl-en | az-en | en-gl | en-az) ;;
  *) echo "ted.sh: SOURCE=$source TARGET=$target: choose gl or az, and en for the other" >&2; exit 1 ;;
esac
. "$(dirname "$0")/shared/ted.sh"
. "$(dirname "$0")/recipe.sh"
follow_plan "CMU 11-731, bilingual LSTM with tuned dropout, BLEU of tokens: gl-en 16.5, az-en 3.0"
