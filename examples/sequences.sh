#!/usr/bin/env bash
# Tasks that need positions, with the model of Ontañón et al. 2022 (arxiv.org/abs/2108.04378): 2 + 2 layers, d_model 64,
# 4 heads, batches of 64 pairs.
#
#   TASK=reverse FAMILY=relative_transformer examples/sequences.sh [--dry-run] [options of fairseq-train]
#
# TASK is one of three generated tasks, with words of 2 to 16 letters for training and up to 24 in the test set:
#   reverse        a b c → c b a
#   duplicate      a b c → a b c a b c
#   intersperse    a b c | d e f → a d b e c f
# or a split of SCAN (Lake and Baroni 2018): scan_length, scan_jump. These are read from MIRROR=FOLDER, which contains
# length.train and others, optionally with .gz, or from github.com/brendenlake/SCAN. The score is the exact match: the
# percentage of outputs that are entirely correct. recipe.sh explains UPDATES, SEED and others.
set -euo pipefail

case ${TASK:=reverse} in
  reverse | duplicate | intersperse | scan_length | scan_jump) ;;
  *) echo "sequences.sh: TASK=$TASK: choose reverse, duplicate, intersperse, scan_length or scan_jump" >&2; exit 1 ;;
esac
corpus=sequences.$TASK source=input target=output size=tiny detokenise=""
preparation=()
shape=(--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 64 --encoder-ffn-embed-dim 256
  --decoder-embed-dim 64 --decoder-ffn-embed-dim 256)
training=(--dropout 0.1 --label-smoothing 0 --share-decoder-input-output-embed --max-source-positions 64
  --max-target-positions 64)
update_pairs=64 batch=20000 MAX_TOKENS=${MAX_TOKENS:-20000} rate=2e-3 warmup=4000 updates=10000  # 64^-0.5 · 4000^-0.5
checkpoints=last
generation=(--beam 1 --max-len-a 0 --max-len-b 60)

. "$(dirname "$0")/recipe.sh"
helpers+=(lock make_once binarised)

prepare() {
  local scan=""
  if [[ $TASK == scan_* ]]; then
    scan=${MIRROR:-data/SCAN}
    [ -n "${MIRROR:-}" ] || run make_once "$scan" git clone --depth 1 https://github.com/brendenlake/SCAN
  fi
  run make_once "$data" binarised input output -- \
    python examples/sequences.py prepare "$TASK" ${scan:+"$scan"}
}

score() {
  run show_and_keep "$run/score.txt" python examples/sequences.py score "$data/raw" "$run/translations.output"
}

follow_plan "Ontañón et al. 2022 have reverse and duplicate of the same lengths, with ten digits and 200,000 pairs, \
and SCAN; see examples/sequences.md"
