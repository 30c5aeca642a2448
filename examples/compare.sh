#!/usr/bin/env bash
# Trains several families with several seeds on the quickstart's corpus and compares them: mean and deviation of the
# scores, significance, scores by sentence length, a chart. It is the table `families` of ablations.sh, and takes its
# variables, with these defaults (RECIPE=wmt14: ablations.sh's UPDATES and OUTPUT, no SIZE):
#
#   examples/compare.sh [--dry-run] [options of fairseq-train, e.g. --encoder-layers 4]
#
#   FAMILIES=(all)                  the first one is the baseline
#   SIZE=tiny                       the size of every family
#   SEEDS="1 2 3"
#   UPDATES=2400
#   OUTPUT=runs/comparison.fr-en    a folder for each run, comparison.md and comparison.png
. "$(dirname "$0")/shared/supervised.sh"
export SEEDS=${SEEDS:-1 2 3} ROWS=${FAMILIES:-${ROWS:-}}
if [ "${RECIPE:-quickstart}" = quickstart ]; then
  export UPDATES=${UPDATES:-2400} OUTPUT=${OUTPUT:-runs/comparison.${SOURCE:-fr}-${TARGET:-en}}
fi
exec bash "$(dirname "$0")/ablations.sh" families "$@"
