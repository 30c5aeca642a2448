#!/usr/bin/env bash
# Trains the rows of one of the papers' tables and compares them, with what the paper printed beside each name. Finished
# rows are skipped: the same command goes on where it was interrupted, and with another seed or row adds that.
#
#   examples/ablations.sh shaw-distance [options of fairseq-train]
#
# The tables are those of user_dir/tools/shared/paper_tables.py, whose first row is what the others are compared with: vaswani
# (Table 3), shaw-distance and shaw-terms (Tables 2 and 3), ahmed-depth, ahmed-weights (how kappa and alpha come about),
# ahmed-decoder (where it has branches); convergence has the families, validates them as they train and says when each
# had the validation loss that the first ends with. The table `families` has the families of ROWS, or all of them
# (compare.sh). Variables and their defaults:
#   RECIPE=quickstart       the quickstart's corpus and model, rows in proportion; wmt14: the papers' sizes and corpus
#   ROWS=(all)              some of them, by name; the first of the table is always there
#   SEEDS=1                 several where rows are close
#   UPDATES=800             with the quickstart's corpus: a few minutes a row
#   MINUTES=6000            after which a row of the quickstart stops
#   CORPUS= SOURCE= TARGET= PAIRS=   the quickstart's
#   OUTPUT=runs/TABLE       a folder for each row and seed, comparison.md and comparison.png
set -euo pipefail
. "$(dirname "$0")/shared/supervised.sh"
extras=plot
. "$(dirname "$0")/install/environment.sh"
cd "$project"

name=${1:-}
[ -n "$name" ] || fail "name a table: $(python user_dir/tools/shared/paper_tables.py)"
shift
recipe=${RECIPE:-quickstart}
case $recipe in
  quickstart)
    export CORPUS=${CORPUS:-tatoeba} SOURCE=${SOURCE:-fr} TARGET=${TARGET:-en} PAIRS=${PAIRS:-}
    size=quickstart reference=data/$CORPUS.$SOURCE-$TARGET${PAIRS:+.$PAIRS}/raw/test.$TARGET ;;
  wmt14) size=base reference=data/wmt14.en-de/raw/test.de ;;
  *) fail "RECIPE is $recipe, and has to be quickstart or wmt14" ;;
esac
if [ "$name" = families ]; then
  rows=$(for family in ${ROWS:-$(python user_dir/families.py)}; do printf '%s\t%s\t\t\n' "$family" "$family"; done)
else
  rows=$(python user_dir/tools/shared/paper_tables.py "$name" "$size")
fi
for row in ${ROWS:-}; do
  cut -f 1 <<< "$rows" | grep -qxF -- "$row" ||
    fail "ROWS names $row; the rows of $name are $(cut -f 1 <<< "$rows" | tr '\n' ' ')"
done
output=${OUTPUT:-runs/$name}
if [ "$name" = convergence ]; then export VALIDATE=${VALIDATE:-50}; fi

train_row() {  # row, family, its options, seed, options of fairseq-train
  local run=$output/$1.$4 options=()
  [ -z "$3" ] || read -r -a options <<< "$3"
  if [ "$recipe" = quickstart ]; then
    ARCH=${2}_${SIZE:-tiny} UPDATES=${UPDATES:-800} MINUTES=${MINUTES:-6000} OUTPUT=$run \
      examples/quickstart.sh ${options[@]+"${options[@]}"} --seed "$4" "${@:5}"
  elif [[ $1 == *big ]]; then  # an architecture of its own
    FAMILY=$2 SIZE=big SEED=$4 OUTPUT=$run examples/wmt14.sh "${@:5}"
  else
    FAMILY=$2 SEED=$4 OUTPUT=$run examples/wmt14.sh ${options[@]+"${options[@]}"} "${@:5}"
  fi
}

systems=() logs=() names=() first=yes
while IFS='|' read -r -u 3 row family options published; do
  [ -n "$first" ] || [ -z "${ROWS:-}" ] || [[ " $ROWS " == *" $row "* ]] || continue
  first=""
  systems+=(--system "$row${published:+ (paper $published)}")
  for seed in ${SEEDS:-1}; do
    echo "==== $row, seed $seed"
    train_row "$row" "$family" "$options" "$seed" "$@"
    systems+=("$output/$row.$seed/generate.log")
    logs+=("$output/$row.$seed/train.log") names+=("$row")
  done
done 3<<< "${rows//$'\t'/|}"  # two tabs are one to `read`, and the first row has no options

echo "==== comparison"
python -m user_dir.tools.compare "${systems[@]}" --output "$output/comparison" --reference "$reference"
if [ "$name" = convergence ]; then
  python -m user_dir.tools.plot_training "${logs[@]}" --names "${names[@]}" --values loss --reach \
    --output "$output/convergence.png"
fi
