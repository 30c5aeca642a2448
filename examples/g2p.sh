#!/usr/bin/env bash
# Letters to sounds: French, Hungarian or Korean words of the SIGMORPHON 2021 task, with Etxaniz's settings, compared
# with his outputs (github.com/juletx/writing-systems, data under CC BY-SA 3.0, from Wiktionary).
#
#   SOURCE=fre FAMILY=vaswani_transformer examples/g2p.sh [--dry-run] [options of fairseq-train]
#
# SOURCE is fre, hun or kor, or names files of your own. MIRROR=FOLDER contains SOURCE.train.tsv, .dev and .test (word
# <tab> sounds, optionally with .gz) and, for comparison, SOURCE.test.published-output.tsv (correct <tab> theirs), or
# it is their repository. Files that have changed need another name: data/g2p.SOURCE.letters-sounds is made once.
# By default the repository is cloned. recipe.sh explains UPDATES, SEED and others.
set -euo pipefail

case ${SOURCE:=fre} in
  fre | hun | kor) ;;
  *[!a-z_]*) echo "g2p.sh: SOURCE=$SOURCE: give the name of a language in lower case" >&2; exit 1 ;;
  *) [ -n "${MIRROR:-}" ] ||
    { echo "g2p.sh: SOURCE=$SOURCE: choose fre, hun and kor, or your own files in MIRROR=FOLDER" >&2; exit 1; } ;;
esac
corpus=g2p.$SOURCE source=letters target=sounds size=tiny detokenise=""
preparation=()
shape=(--encoder-embed-dim 256 --encoder-ffn-embed-dim 1024 --decoder-embed-dim 256 --decoder-ffn-embed-dim 1024)
training=(--encoder-normalize-before --decoder-normalize-before --share-decoder-input-output-embed
  --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1 --clip-norm 1 --patience 20
  --adam-betas '(0.9, 0.999)' --adam-eps 1e-8)  # fairseq's defaults, which they use
update_pairs=400 batch=20000 MAX_TOKENS=${MAX_TOKENS:-20000} rate=1e-3 warmup=1000 updates=5000
checkpoints=best
generation=(--beam 5)

. "$(dirname "$0")/recipe.sh"
helpers+=(lock make_once binarised)

prepare() {
  local most=""; [ "$SMOKE" = 0 ] || most=1000
  [ -n "${MIRROR:-}" ] ||
    run make_once data/writing-systems git clone --depth 1 https://github.com/juletx/writing-systems
  run make_once "$data" binarised letters sounds --thresholdsrc 5 --thresholdtgt 5 -- \
    python examples/g2p.py prepare "${MIRROR:-data/writing-systems}" "$SOURCE" ${most:+"$most"}
}

score() {
  run show_and_keep "$run/score.txt" python examples/g2p.py score "$data/raw" "$run/translations.sounds"
}

follow_plan "Etxaniz, fairseq's transformer of this size, one seed, word error rate in %:
French 10.2, Hungarian 1.9, Korean 30.2"
