#!/usr/bin/env bash
# Trains the rows of one of the papers' tables and compares them, with the paper's figure beside each name. Finished
# rows are skipped: the same command continues after an interruption, and adds another seed or row.
#
#   examples/ablations.sh shaw-distance [--dry-run] [options of fairseq-train]
#
# The tables are those of user_dir/tools/shared/paper_tables.py; their first row is the baseline: vaswani (Table 3),
# shaw-distance and shaw-terms (Tables 2 and 3), ahmed-depth, ahmed-weights (how kappa and alpha are set), ahmed-decoder
# (which attention has branches); convergence has the families, validates them during training and shows when each
# reached the baseline's lowest validation loss. The table `families` has the families of ROWS, or all (compare.sh).
# Variables and their defaults:
#   RECIPE=quickstart       the quickstart's corpus and model, rows in proportion; wmt14: the papers' sizes and corpus
#   ROWS=(all)              some of them, by name; the first of the table is always included
#   SEEDS=1                 several if rows are close
#   UPDATES=800             with the quickstart's corpus: a few minutes per row (wmt14: those of each family's paper)
#   AVERAGE=1 CHOOSE=       with wmt14: recipe.sh's
#   MINUTES=6000            the time after which a row of the quickstart stops
#   CORPUS= SOURCE= TARGET= PAIRS= VALIDATE= MIRROR= GPUS=   the quickstart's
#   OUTPUT=runs/TABLE       a folder for each row and seed, comparison.md and comparison.png
set -euo pipefail
. "$(dirname "$0")/shared/supervised.sh"
dry_run=""
if [[ " $* " == *" --dry-run "* ]]; then
  dry_run=yes INSTALL=no
  python() { "${PYTHON:-python3}" "$@"; }
fi
[ -d "${MIRROR:-.}" ] || { echo "$(basename "$0"): MIRROR=$MIRROR: there is no such folder" >&2; exit 1; }
[ -z "${MIRROR:-}" ] || MIRROR=$(realpath "$MIRROR")
cd "$(dirname "$0")/.."
. examples/install/environment.sh
export -n SIZE SEEDS FAMILIES  # which would have no effect in a row

name=${1:-}
[[ $name == [a-z]* ]] || fail "name a table: $(python -m user_dir.tools.shared.paper_tables)"
shift
[[ " $*" != *" --seed"* && -z ${SEED:-} ]] || fail "--seed and SEED: use SEEDS=..., which also names the folders"
[ -z "${FAMILY:-}${ARCH:-}" ] || fail "FAMILY and ARCH have no effect: use ROWS=..., in compare.sh FAMILIES=..."
recipe=${RECIPE:-quickstart}
case $recipe in
  quickstart)
    export CORPUS=${CORPUS:-tatoeba} SOURCE=${SOURCE:-fr} TARGET=${TARGET:-en} PAIRS=${PAIRS:-}
    size=quickstart reference=data/$CORPUS.$SOURCE-$TARGET${PAIRS:+.$PAIRS}/raw/test.$TARGET ;;
  wmt14)
    [ -z "${SIZE:-}" ] || fail "SIZE=$SIZE has no effect, because the rows have the papers' sizes; omit it"
    target=${TARGET:-de} smoke=$([ "${SMOKE:-0}" = 0 ] || echo .smoke)
    [ -n "${CHOOSE:-}" ] || export AVERAGE=${AVERAGE:-1}  # the papers' ablations average no checkpoints
    size=base reference=data/wmt14.en-$target$smoke/raw/test.$target ;;
  *) fail "RECIPE is $recipe, and has to be quickstart or wmt14" ;;
esac
if [ "$name" = families ]; then
  rows=$(for family in ${ROWS:-$(python user_dir/families.py)}; do
    python user_dir/families.py "${family}_${SIZE:-tiny}" >/dev/null || exit
    [ "$recipe $family" != "quickstart transformer" ] ||
      fail "ROWS or FAMILIES names transformer, fairseq's own, which the quickstart does not train; omit it"
    printf '%s\t%s\t\t\n' "$family" "$family"
  done)
else
  rows=$(python -m user_dir.tools.shared.paper_tables "$name" "$size")
fi
for row in ${ROWS:-}; do
  cut -f 1 <<< "$rows" | grep -qxF -- "$row" ||
    fail "ROWS names $row; the rows of $name are $(cut -f 1 <<< "$rows" | tr '\n' ' ')"
done
named=" $(printf '%s ' ${ROWS:-})"  # also where lines separate them
rows=$(awk -F '\t' -v named="$named" 'NR == 1 || named == "  " || index(named, " " $1 " ")' <<< "$rows")
[ "$(wc -l <<< "$rows")" -gt 1 ] ||
  fail "ROWS or FAMILIES names only ${ROWS:-}, with which there is nothing to compare; name another one, too"
for word in "$@"; do
  [[ $word != --* || " ${rows//$'\t'/ } " != *" ${word%%=*} "* ]] ||
    fail "${word%%=*}: the rows of $name differ in it, and would become equal; omit it"
done
[ -z "${SIZE:-}" ] || ! grep -qE -- '-(layers|dim|heads) ' <<< "$rows" ||
  fail "SIZE=$SIZE: the rows of $name are in proportion to the quickstart's model; omit it"
[[ " ${SEEDS:-1}" =~ ^(\ +(0|[1-9][0-9]*))+$ ]] || fail "SEEDS is '$SEEDS', and has to be numbers, such as '1 2 3'"
for list in SEEDS ROWS; do
  twice=$(tr -s ' ' '\n' <<< "${!list:-}" | sort | uniq -d | head -n 1)
  [ -z "$twice" ] || fail "${list/ROWS/ROWS or FAMILIES} is '${!list}', and names $twice twice"
done
output=${OUTPUT:-runs/$name}
if [ "$name $recipe" = "convergence quickstart" ]; then export VALIDATE=${VALIDATE:-50}; fi

systems=() logs=() names=()
while IFS='|' read -r -u 3 row family options published; do
  systems+=(--system "$row${published:+ (paper, newstest2013: $published)}")
  for seed in ${SEEDS:-1}; do
    echo "# ==== $row, seed $seed"
    run=$output/$row.$seed
    if [ "$recipe" = quickstart ]; then
      ARCH=${family}_${SIZE:-tiny} UPDATES=${UPDATES:-800} MINUTES=${MINUTES:-6000} OUTPUT=$run \
        examples/quickstart.sh $options --seed "$seed" "$@"
    elif [[ $row == *big ]]; then  # another architecture
      FAMILY=$family SIZE=big SEED=$seed OUTPUT=$run examples/wmt14.sh "$@"
    else
      FAMILY=$family SIZE=base SEED=$seed OUTPUT=$run examples/wmt14.sh $options "$@"
    fi
    systems+=("$run/generate.log") logs+=("$run/train.log") names+=("$row")
  done
done 3<<< "${rows//$'\t'/|}"  # `read` treats two tabs as one, and the first row has no options

run() {
  if [ -n "$dry_run" ]; then printf '%q ' "$@" && echo; else "$@"; fi
}

# slurm.sbatch and other hosts leave the scores to a later call.
[[ "${NODE_RANK:-0} ${STEPS:-score}" == 0\ *score* ]] || exit 0
echo "# ==== comparison"
run python -m user_dir.tools.compare "${systems[@]}" --output "$output/comparison" --reference "$reference"
if [ "$name" = convergence ]; then
  run python -m user_dir.tools.plot_training "${logs[@]}" --names "${names[@]}" --values loss --reach \
    --output "$output/convergence.png"
fi
