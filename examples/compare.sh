#!/usr/bin/env bash
# Trains several families with several seeds on the quickstart's corpus and compares them: mean and deviation of the
# scores, significance, scores by sentence length, a chart. Finished steps are skipped: the same command continues after
# an interruption, and adds another family or seed.
#
#   examples/compare.sh [options of fairseq-train, e.g. --encoder-layers 4]
#
# Variables and their defaults; CORPUS, SOURCE, TARGET and PAIRS are the quickstart's:
#   FAMILIES=(all)                  the first one is the baseline
#   SIZE=tiny                       of every family
#   SEEDS="1 2 3"
#   UPDATES=2400                    all runs have this many updates ...
#   MINUTES=6000                    ... unless they take longer than that
#   OUTPUT=runs/comparison.fr-en    a folder for each run, comparison.md and comparison.png
set -euo pipefail
. "$(dirname "$0")/shared/supervised.sh"
extras=plot
. "$(dirname "$0")/install/environment.sh"
cd "$project"

export CORPUS=${CORPUS:-tatoeba} SOURCE=${SOURCE:-fr} TARGET=${TARGET:-en} PAIRS=${PAIRS:-}
export UPDATES=${UPDATES:-2400} MINUTES=${MINUTES:-6000}
families=${FAMILIES:-$(python user_dir/families.py)}
output=${OUTPUT:-runs/comparison.$SOURCE-$TARGET}

systems=()
for family in $families; do
  systems+=(--system "$family")
  for seed in ${SEEDS:-1 2 3}; do
    echo "==== $family, seed $seed"
    ARCH=${family}_${SIZE:-tiny} OUTPUT=$output/$family.$seed examples/quickstart.sh --seed "$seed" "$@"
    systems+=("$output/$family.$seed/generate.log")
  done
done

echo "==== comparison"
python -m user_dir.tools.compare "${systems[@]}" --output "$output/comparison" \
  --reference "data/$CORPUS.$SOURCE-$TARGET${PAIRS:+.$PAIRS}/raw/test.$TARGET"
