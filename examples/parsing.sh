#!/usr/bin/env bash
# English constituency parsing as translation of words into brackets (Vaswani et al. 2017, 6.3; Vinyals et al. 2015).
#
#   TREEBANK=FOLDER FAMILY=vaswani_transformer examples/parsing.sh [--dry-run] [options of fairseq-train]
#
#   TREEBANK=     folder with WSJ's sections: 02 to 21 for training, 22 for validation, 23 for the test. By default a
#                 sample treebank is made, on which SIZE=tiny is trained in minutes
#   PARSED=       file or folder with a parser's trees as additional training data
#   SIZE=         base: WSJ only; big: with PARSED. 4 layers and d_model 1024 in both
#
# recipe.sh explains the other variables.
set -euo pipefail

refuse() { echo "parsing.sh: $*" >&2; exit 1; }

[ "${CHOOSE:-}" != bleu ] || refuse "CHOOSE=bleu is for text; use CHOOSE=loss"
TREEBANK=${TREEBANK:-} PARSED=${PARSED:-}
if [ -z "$TREEBANK" ]; then corpus=sample_trees size=${SIZE:-tiny}
elif [ -z "$PARSED" ]; then corpus=wsj size=${SIZE:-base}
else corpus=wsj.parsed size=${SIZE:-big}; fi
source=words target=brackets checkpoints=1250
# d_ff and heads are those of the size. Dropout, rate, warm-up and separate matrices come from tensor2tensor's
# transformer_parsing_base and _big; for these the paper has "a small number of experiments". It gives the batch of its
# base model and the vocabularies.
shape=(--encoder-layers 4 --decoder-layers 4 --encoder-embed-dim 1024 --decoder-embed-dim 1024)
case $size in
  base)  # the rate is 0.5 * d_model^-0.5 * warmup^-0.5 at its peak
    preparation=(--bpe-operations 16000) training=(--dropout 0.2 --attention-dropout 0.2)
    batch=25000 rate=1.24e-4 warmup=16000 ;;
  big) preparation=(--bpe-operations 32000) training=(--dropout 0.1) batch=25000 rate=2.47e-4 warmup=4000 ;;
  tiny)  # our choice, for the sample
    shape=(--encoder-layers 2 --decoder-layers 2)
    preparation=(--bpe-operations 200) training=(--dropout 0.1 --clip-norm 1)
    batch=1000 rate=3e-3 warmup=200 updates=600 average=1 ;;
  *) refuse "SIZE=$size: choose one of tiny, base and big" ;;
esac
generation=(--beam 21 --lenpen 0.3 --max-len-a 1 --max-len-b 300)
[ "$size" = tiny ] || generation+=(--lenpen-form vaswani)  # the paper's; the sample's figures use fairseq's
detokenise="" remedy=""

[ -z "$TREEBANK" ] || [ -d "$TREEBANK" ] || refuse "TREEBANK=$TREEBANK: there is no such folder"
[ -z "$PARSED" ] || [ -e "$PARSED" ] || refuse "PARSED=$PARSED: there is no such file or folder"
[ -z "$PARSED" ] || [ -n "$TREEBANK" ] || refuse "PARSED needs a treebank; name it, too: TREEBANK=FOLDER"
case $size$PARSED in  # the two sizes have different subwords, and PARSED determines the folder of the data
  big) refuse "SIZE=big needs a parser's trees; name them, too: PARSED=FOLDER" ;;
  base?*) refuse "SIZE=base uses WSJ only; omit PARSED, or use SIZE=big" ;;
esac
[ -z "${MIRROR:-}" ] || refuse "MIRROR=$MIRROR: nothing is fetched; name the folder with the treebank: TREEBANK=FOLDER"
[ "$size" != base ] || [ -n "$TREEBANK" ] || refuse "SIZE=base needs a treebank; name it: TREEBANK=FOLDER"
[ "$size" != tiny ] || [ -z "$TREEBANK" ] || refuse "SIZE=tiny is for the sample; omit SIZE"
[ -z "$TREEBANK" ] || TREEBANK=$(realpath "$TREEBANK")
[ -z "$PARSED" ] || PARSED=$(realpath "$PARSED")

. "$(dirname "$0")/recipe.sh"

prepare() {
  local trees=data/sample_trees
  local train=("$trees/train.mrg") valid=$trees/valid.mrg test=$trees/test.mrg
  if [ -n "$TREEBANK" ]; then
    train=("$TREEBANK"/{0{2..9},1{0..9},20,21}) valid=$TREEBANK/22 test=$TREEBANK/23
  else
    run python data-prep/sample_treebank.py "$trees"
  fi
  run python data-prep/treebank.py --train "${train[@]}" ${PARSED:+"$PARSED"} --valid "$valid" --test "$test" \
    --output "$data" "${preparation[@]}"
}

score() {
  run show_and_keep "$run/score.txt" python -m user_dir.tools.score_parses "$run/generate.log" \
    --gold "$data/raw/test.brackets" --words "$data/raw/test.words" --output "$run/trees.mrg"
}

follow_plan "F1 on WSJ 23 (the sample has none to compare with, and is easier)
Vaswani et al. 2017, WSJ only             91.3
Vaswani et al. 2017, semi-supervised      92.7
Vinyals et al. 2015, WSJ only             88.3
Vinyals et al. 2015, semi-supervised      92.1"
