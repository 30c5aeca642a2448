#!/usr/bin/env bash
# WMT14 English-German (4.5M pairs) or English-French (36M pairs): the papers' main results. newstest2013 is the
# validation set, newstest2014 the test set.
#
#   FAMILY=vaswani_transformer SIZE=base TARGET=de examples/wmt14.sh [--dry-run] [options of fairseq-train]
#
# SIZE is base or big, TARGET de or fr; recipe.sh explains the other variables, slurm.sbatch runs it on several hosts.
set -euo pipefail

SIZE=${SIZE:-base}
corpus=wmt14 source=en target=${TARGET:-de} size=$SIZE
[[ $SIZE == base || $SIZE == big ]] || { echo "wmt14.sh: SIZE=$SIZE: choose base or big" >&2; exit 1; }
case $target in
  de) preparation=(--bpe-operations 37000) ;;
  fr) preparation=(--bpe-operations 32000); [ "$SIZE" = base ] || size=big_en_fr ;;  # it has dropout 0.1
  *) echo "wmt14.sh: TARGET=$target: choose de or fr" >&2; exit 1 ;;
esac
training=(--share-all-embeddings)
batch=25000 warmup=4000  # Vaswani et al. 2017, 5.1 and 5.3: the rate is d_model^-0.5 * warmup^-0.5 at its peak
case $SIZE in base) rate=6.99e-4 checkpoints=1250 ;; big) rate=4.94e-4 checkpoints=625 ;; esac  # ten minutes, about
generation=(--beam 4 --lenpen 0.6 --lenpen-form vaswani --max-len-a 1 --max-len-b 50)

. "$(dirname "$0")/recipe.sh"

published() {  # base de, base fr, big de, big fr
  case $SIZE.$target in base.de) echo "$1" ;; base.fr) echo "$2" ;; big.de) echo "$3" ;; big.fr) echo "$4" ;; esac
}
follow_plan "newstest2014, en-$target, $SIZE: tokenised BLEU in the papers (scores.md says how scores differ)
Vaswani et al. 2017               $(published 27.3 38.1 28.4 41.8)
Shaw et al. 2018, absolute        $(published 26.5 38.2 27.9 41.2)
Shaw et al. 2018, relative        $(published 26.8 38.7 29.2 41.5)
Ahmed et al. 2017, weighted       $(published 28.4 38.9 28.9 41.4)"
