#!/usr/bin/env bash
# Sourced by the recipes with published settings, after they set these (shared/steps.sh lists them): combines them with
# the variables below and the family's paper; `follow_plan` runs the steps in order.
#
# Variables and their defaults:
#   FAMILY=vaswani_transformer  any of user_dir/families.py; transformer is fairseq's own, in the same size, trained
#                               with fairseq's own optimizer and loss
#   GPUS=                       GPUs to use on this host, one process each (default: those in CUDA_VISIBLE_DEVICES or of
#                               nvidia-smi, so give a number for AMD's; 0: train on CPUs)
#   PROCESSES=1                 with GPUS=0: processes on this host, which share its cores
#   NODES=1 NODE_RANK=0         number of hosts, and the number of this one
#   MASTER_ADDR=                with several hosts: the first one's address
#   MASTER_PORT=29500           and its port (one host: a port for each OUTPUT). slurm.sbatch sets all four
#   MAX_TOKENS=4096             tokens that fit into a process at a time (g2p.sh, sequences.sh: 20000); the batch stays
#                               the paper's
#   UPDATES= AVERAGE=           updates (or --max-update), and checkpoints to average (default: the recipe's or paper's)
#   BATCH=                      source and target tokens per update (default: the recipe's; not where it counts pairs)
#   CHOOSE=                     loss or bleu: translate with the checkpoint of the lowest validation loss or the highest
#                               BLEU of the validation set (greedy search), also for --patience, instead of an average
#   VALID_PAIRS=                validate on this many pairs, always the same ones (default: all)
#   SEED=1                      the seed of initialisation, dropout and the order of batches
#   MIRROR=                     folder with the corpus's files, if they cannot be fetched
#   OUTPUT=runs/...             checkpoints, logs and translations, relative to the project; the data go to data/
#   SMOKE=0                     1: a tiny model and few updates, to test every step
#   STEPS="prepare train average translate score"   run only these; on other hosts than the first: train
#   INSTALL= PYTHON=python3     INSTALL=no uses the active environment as it is; else PYTHON makes .venv
#
# Optional settings of a recipe:
#   shape=(...)                 options that change the size's layers and widths
#   dataset                     the data's name, where options of the preparation differ (default: corpus.source-target)
#   detokenise=""               the translations are not text (default: yes)
#   update_pairs                an update has so many pairs, and `batch` only says how many tokens these have at most
#   remedy=""                   the recipe fetches no files
#
# --dry-run prints the commands. Other arguments go to fairseq-train, whose --help lists general options; those of our
# models, task and optimizer are in user_dir/README.md. Only --autocast bf16 or off may change when a run
# continues; without it the faster one is chosen when the run begins, and kept.

more_settings="size batch rate warmup checkpoints"
. "$(dirname "${BASH_SOURCE[0]}")/shared/steps.sh"

for name in shape dataset detokenise update_pairs remedy updates average; do
  [[ ! $(declare -p "$name" 2>&1) =~ ^declare\ -[a-zA-Z]*x ]] ||
    fail "your environment has a variable $name, which would be taken for a setting of the recipe: unset $name"
done
have_no_effect ARCH CORPUS TASK TREEBANK PARSED SIZE SOURCE TARGET MERGES PATIENCE PREPARATION PAIRS MINUTES VALIDATE \
  SEEDS FAMILIES ${update_pairs:+BATCH}
for argument in "${further[@]}"; do
  case ${argument%%=*} in
    --keep-last-epochs) fail "$argument: AVERAGE says how many are kept; omit it" ;;
    --keep-interval-updates)
      [[ $checkpoints =~ epoch|best|last ]] || fail "$argument: AVERAGE says how many are kept; omit it" ;;
    --distributed-world-size) fail "$argument: use GPUS=..., or PROCESSES=... with GPUS=0, which share the batch" ;;
    --seed) fail "$argument: use SEED=..., which also names the folder" ;;
    --max-tokens | --batch-size | --max-sentences | --update-freq)
      [ -z "${update_pairs:-}" ] || fail "$argument: an update has $update_pairs pairs here; omit it"
      fail "$argument: use BATCH=..., and MAX_TOKENS=... for each process" ;;
    --max-epoch)
      [[ $checkpoints =~ epoch|best|last ]] ||
        fail "$argument: use UPDATES=..., because checkpoints are kept by update here" ;;
  esac
done

# ---- the family

family=${FAMILY:-vaswani_transformer}
published=$("${PYTHON:-python3}" "$project/user_dir/families.py" "${family}_$size" 2>&1) ||
  fail "FAMILY=$family: there is no $published"
read -r published_updates published_average attention_dropout <<< "$published"
# Only the papers' own corpus is trained with all their settings.
if [ "$corpus" = wmt14 ]; then
  training=(--attention-dropout "$attention_dropout" "${training[@]}")
  # Ahmed et al. 2017, 4.1: residual dropout is the same, in English-French, too.
  [ "$attention_dropout" = 0.0 ] || training=(--dropout "$attention_dropout" "${training[@]}")
fi

model=(--arch "${family}_$size")
if [ "$family" = transformer ]; then  # fairseq's own has neither our options nor our names of sizes
  [ -z "$precision" ] || fail "--autocast $precision: fairseq's own transformer has no such option; omit it"
  precisions=""
  case $size in
    tiny)
      model=(--arch transformer)
      for side in encoder decoder; do
        model+=("--$side-layers" 4 "--$side-embed-dim" 128 "--$side-ffn-embed-dim" 256 "--$side-attention-heads" 4)
      done ;;
    iwslt_de_en) model=(--arch transformer_iwslt_de_en) ;;
    base) model=(--arch transformer_wmt_en_de) ;;
    big) model=(--arch transformer_vaswani_wmt_en_de_big) ;;
    big_en_fr) model=(--arch transformer_vaswani_wmt_en_fr_big) ;;
  esac
fi
[ -z "${shape+set}" ] || model+=("${shape[@]}")

# ---- how large

visible_gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then tr , '\n' <<< "$CUDA_VISIBLE_DEVICES" | grep -c '^[^-]'
  else nvidia-smi -L 2>/dev/null | grep -c '^GPU'; fi
}
GPUS=${GPUS:-$(visible_gpus || true)}
NODES=${NODES:-1} NODE_RANK=${NODE_RANK:-0} MAX_TOKENS=${MAX_TOKENS:-4096} SEED=${SEED:-1}
SMOKE=${SMOKE:-0}
at_least 0 SMOKE
if [ "$SMOKE" != 0 ]; then
  updates=30 warmup=10
  case $checkpoints in best | last) ;; *) average=2 checkpoints=10 ;; esac
  model+=(--encoder-layers 1 --encoder-embed-dim 64 --encoder-ffn-embed-dim 128)
  model+=(--decoder-layers 1 --decoder-embed-dim 64 --decoder-ffn-embed-dim 128)
  preparation+=(--max-pairs 1000)        # the last word of an option counts
  [[ " ${preparation[*]}" == *" --like"[\ =]* ]] || preparation+=(--bpe-operations 500)
  generation+=(--beam 1 --max-len-b 10)  # an untrained model does not end sentences
fi
case $checkpoints in best | last)
  [ "${AVERAGE:-1}" = 1 ] || fail "AVERAGE=$AVERAGE: the $checkpoints checkpoint alone translates here; omit AVERAGE"
  average=1 ;;
esac
[ -z "${CHOOSE:-}" ] || [ "${AVERAGE:-1}" = 1 ] ||
  fail "AVERAGE=$AVERAGE: with CHOOSE=$CHOOSE one checkpoint translates; omit one of them"
UPDATES=${UPDATES:-${updates:-$published_updates}} AVERAGE=${AVERAGE:-${average:-$published_average}}
at_least 0 GPUS NODE_RANK SEED
PROCESSES=${PROCESSES:-$((GPUS > 0 ? GPUS : 1))}
at_least 1 PROCESSES NODES MAX_TOKENS UPDATES AVERAGE ${MERGES:+MERGES}
workers=$((PROCESSES * NODES))
[ "$SMOKE" = 0 ] || batch=$((workers < 4 ? 1000 : 300 * workers))  # a long sentence for each
BATCH=${BATCH:-$batch}
at_least 1 BATCH
[ "$GPUS" = 0 ] || [ "$GPUS" = "$PROCESSES" ] ||
  fail "PROCESSES is $PROCESSES and GPUS $GPUS, and each GPU has one process;" \
    "omit PROCESSES, or use CPUs: GPUS=0"
[ "$NODE_RANK" -lt "$NODES" ] || fail "NODE_RANK is $NODE_RANK and NODES $NODES; hosts are counted from 0"
host=$NODE_RANK

# The batch is the paper's on any number of processes: as few passes per update as the memory allows, all of equal size.
# fairseq counts the longer side of a batch, so this limits both its source and its target tokens.
share_batch() {  # tokens of a batch, tokens that fit into a process, processes: sets update_freq and max_tokens
  update_freq=$((($1 + $3 * $2 - 1) / ($3 * $2)))
  max_tokens=$((($1 + $3 * update_freq / 2) / ($3 * update_freq)))
}

[ "$NODES" = 1 ] || [ -n "${MASTER_ADDR:-}" ] || fail "NODES=$NODES needs the first host's address; add MASTER_ADDR=..."
share_batch "$BATCH" "$MAX_TOKENS" "$workers"
[ "$max_tokens" -ge 300 ] ||  # fairseq omits sentences longer than that
  fail "BATCH=$BATCH with MAX_TOKENS=$MAX_TOKENS leaves $max_tokens tokens at a time to each of $workers processes" \
    "(GPUS=$GPUS PROCESSES=$PROCESSES NODES=$NODES), fewer than in a long sentence; use fewer processes or more tokens"

share="$workers x $update_freq x $max_tokens = $((workers * update_freq * max_tokens)) source and target tokens"
if [ -n "${update_pairs:-}" ]; then  # on any number of processes
  [ $((update_pairs % workers)) = 0 ] && [ "$update_freq" = 1 ] ||
    fail "the $update_pairs pairs of an update are not divisible by $workers processes with $update_freq passes; omit" \
      "MAX_TOKENS, and choose $([ "$GPUS" = 0 ] && echo PROCESSES || echo GPUS) and NODES whose product divides" \
      "$update_pairs"
  share="$update_pairs pairs"
fi

every_step="prepare train average translate score" steps=$every_step log=train.log
[ "$host" = 0 ] || steps=train log=train.$host.log  # the first host does the rest, in the same folders
STEPS=${STEPS:-$steps} STEPS=${STEPS//[$'\n\t']/ }  # also where lines separate them
for word in $STEPS; do
  [[ " $every_step " == *" $word "* ]] || fail "STEPS=$STEPS: $word is not a step; choose from ${every_step// /, }"
done

[ -z "${MIRROR:-}" ] || remedy=""

name=${dataset:-$corpus.$source-$target}; [ "$SMOKE" = 0 ] || name+=.smoke
data=data/$name
run=${OUTPUT:-runs/${family}_$size.$name.seed$SEED${CHOOSE:+.$CHOOSE}}
[[ $run != *:* ]] || fail "OUTPUT=$run: fairseq takes no colon in a path; name another folder"

# ---- options of the steps

# Our families use this optimizer in all recipes; its option for branch weights has no effect without branches.
frozen=$((UPDATES < 60000 ? UPDATES / 6 : 10000))  # the last ones; Ahmed et al. 2017, 4: 10,000 of 60,000, of 250,000
rule=(--criterion fused_label_smoothed_cross_entropy --optimizer fused_adam --branch-frozen-updates "$frozen")
[ "$family" != transformer ] || rule=(--criterion label_smoothed_cross_entropy --optimizer adam)
training=("${model[@]}" "${rule[@]}" --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' --adam-eps 1e-9
  --lr "$rate" --lr-scheduler inverse_sqrt --warmup-updates "$warmup" --warmup-init-lr 1e-7
  --max-update "$UPDATES" --seed "$SEED" "${training[@]}")  # the recipe's options come last and win

# More processes have fewer tokens each, in which a long sentence of the validation set might not fit.
running=(--max-tokens "$max_tokens" --max-tokens-valid "$MAX_TOKENS" --update-freq "$update_freq"
  --log-interval $((UPDATES < 1000 ? 10 : 100)))
if [ -n "${update_pairs:-}" ]; then
  running+=(--batch-size $((update_pairs / workers)))
  # fairseq would take fewer pairs, a multiple of eight.
  [ $((update_pairs / workers % 8)) = 0 ] || running+=(--required-batch-size-multiple 1)
fi
averaged=("$run/checkpoint_last.pt")
case $checkpoints in
  best | last)
    running+=(--no-epoch-checkpoints)
    averaged=("$run/checkpoint_$checkpoints.pt") ;;
  epoch)
    running+=(--keep-last-epochs "$AVERAGE")
    [ "$AVERAGE" = 1 ] || averaged=("$run" --last "$AVERAGE" --by epoch --or-fewer) ;;
  *)  # so often that two more are saved than are averaged, because fairseq saves none where an epoch ends
    interval=$((UPDATES / (AVERAGE + 2)))
    interval=$((interval < 1 ? 1 : interval < checkpoints ? interval : checkpoints))
    running+=(--no-epoch-checkpoints --save-interval-updates "$interval" --keep-interval-updates "$AVERAGE")
    [ "$AVERAGE" = 1 ] || averaged=("$run" --last "$AVERAGE" --by update --or-fewer) ;;
esac

# Without this option fairseq starts one process per visible GPU. torchrun ends all processes when one dies.
running+=(--distributed-world-size "$workers")
if [ "$workers" -gt 1 ]; then
  port=29500
  if [ "$NODES" = 1 ]; then
    MASTER_ADDR=127.0.0.1  # clusters export another one
    # Other runs may train on the same host.
    port=$((20000 + $(cksum <<< "$project/$run" | cut -d ' ' -f 1) % 12000))
  fi
  MASTER_PORT=${MASTER_PORT:-$port}
  at_least 1 MASTER_PORT
  launch=(torchrun --nnodes "$NODES" --node-rank "$NODE_RANK" --nproc-per-node "$PROCESSES"
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" --no-python)
  if [ "$GPUS" != 0 ]; then
    launch+=(fairseq-train)
  else
    launch+=(examples/shared/cpu_process.sh)
    running+=(--distributed-init-method env:// --distributed-no-spawn)
    running+=(--distributed-backend gloo --ddp-backend legacy_ddp)
  fi
fi
if [ "$GPUS" = 0 ]; then
  running+=(--cpu)
  . "$project/examples/install/cores.sh"
  threads=$(($(cores) / PROCESSES))
  [ "$PROCESSES" = 1 ] || malloc+=("OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}")
  launch=(env "${malloc[@]}" "${launch[@]}")
fi

# These texts are not detokenised, because their published scores are computed on tokens.
if [[ " ${preparation[*]} " == *" --lowercase "* || " ${preparation[*]} " == *" --pretokenised "* ]]; then
  reference=(--target-lang "$target")
else
  reference=(--reference "$data/raw/test.$target" --target-lang "$target")
  [ -z "${detokenise-yes}" ] || generation=(--tokenizer moses "${generation[@]}")
fi

# ---- the checkpoint that is chosen

CHOOSE=${CHOOSE:-} VALID_PAIRS=${VALID_PAIRS:-}
case $CHOOSE in
  "" | loss) ;;
  bleu)
    training+=(--eval-bleu --eval-bleu-remove-bpe --eval-bleu-args '{"beam": 1, "max_len_a": 1, "max_len_b": 50}'
      --best-checkpoint-metric bleu --maximize-best-checkpoint-metric)
    # fairseq's BLEU of detokenised text takes a sentence without spaces for one word (nmt-score's TOKENISERS).
    unspaced="^(zh|zho|cmn|yue|ja|jpn|th|tha|km|khm|lo|lao|my|mya|bo|bod|dz|dzo)(_|$)"
    if [ "${generation[0]}" = --tokenizer ] && [[ ! $target =~ $unspaced ]]; then
      training+=(--eval-bleu-detok moses)
    else training+=(--eval-tokenized-bleu); fi ;;
  *) fail "CHOOSE=$CHOOSE: choose loss or bleu, or omit it for an average" ;;
esac
[ -z "$CHOOSE" ] || averaged=("$run/checkpoint_best.pt")
[ "${averaged[0]}" != "$run/checkpoint_best.pt" ] || [[ " ${further[*]} " != *" --disable-validation "* ]] ||
  fail "--disable-validation: the best checkpoint translates here, and validations choose it; omit it"
chosen="AVERAGE=$AVERAGE${CHOOSE:+ CHOOSE=$CHOOSE}"
if [ -n "$VALID_PAIRS" ]; then
  at_least 1 VALID_PAIRS
  training+=(--valid-pairs "$VALID_PAIRS")
fi

# ---- recipes whose data data-prep does not prepare

make_once() {  # folder, command that writes it [another folder]: also where two recipes need it at once
  local made=$1
  mkdir -p "$(dirname "$made")"
  (
    set -e
    lock "$made"
    [ ! -d "$made" ] || { echo "$made is there"; exit 0; }
    trap 'rm -rf "$made.partial"' EXIT
    rm -rf "$made.partial"
    "${@:2}" "$made.partial"
    mv "$made.partial" "$made"
  ) 9<> "$made.lock"
}

binarised() {  # languages [options of fairseq-preprocess] -- command that writes the texts [folder], folder
  local source=$1 target=$2 folder=${*: -1} options=() part lines
  shift 2
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  mkdir -p "$folder/raw"
  "${@:2:$#-2}" "$folder/raw"
  for part in train valid test; do
    lines=$(wc -l < "$folder/raw/$part.$source")
    [ "$lines" != 0 ] && [ "$lines" = "$(wc -l < "$folder/raw/$part.$target")" ] ||
      { echo "$part.$source and $part.$target need as many lines, and at least one: fetch them again" >&2; exit 1; }
  done
  fairseq-preprocess --source-lang "$source" --target-lang "$target" --workers 2 "${options[@]}" \
    --trainpref "$folder/raw/train" --validpref "$folder/raw/valid" --testpref "$folder/raw/test" \
    --destdir "$folder/data-bin"
}

# ---- the plan

wanted() { [[ " $STEPS " == *" $1 "* ]]; }

follow_plan() {  # published results
  echo "# $family ($size) on $name: $share an update, $UPDATES updates"
  begin_plan
  # Commands other than fairseq-train also use any GPU that they see.
  if [ "$GPUS" = 0 ]; then run export CUDA_VISIBLE_DEVICES=; fi
  if wanted prepare; then
    step prepare "${remedy-; if files cannot be fetched, put them into a folder and run MIRROR=FOLDER $0}"
  fi
  # Before other hosts are started (slurm.sbatch): they would refuse the options of a try that was ended.
  if [ "$NODES" != 1 ] || [[ $STEPS =~ train|average|translate|score ]]; then open_run; fi
  if wanted train; then
    if [ -z "$dry_run" ] && [ ! -e "$run/trained" ]; then check_training; fi
    step train
  fi
  if wanted average; then step average; fi
  if wanted translate; then step translate; fi
  if wanted score; then step score; step record; fi
  printf '\n# to compare with\n'
  sed 's/^/# /' <<< "$1"
}

check_training() {
  if [ "$GPUS" != 0 ]; then
    # device_count also counts those whose driver is too old for this torch.
    local seen; seen=$(python -c 'import torch; print(torch.cuda.is_available() and torch.cuda.device_count() or 0)')
    [ "$seen" -ge "$GPUS" ] || fail "GPUS is $GPUS, and torch can use $seen on this host. GPUS=0 trains on CPUs;" \
      "if torch was installed before the GPU, or is too new for its driver, install another:" \
      "${own_environment:+.venv/bin/}pip install --force-reinstall torch==$torch_version" \
      "(for drivers before 580 with $older_gpus)"
  fi
  if [ -s "$run/precision" ]; then
    echo "# $run has been trained with --autocast $(cat "$run/precision")${precision:+ so far, now with $precision}"
  fi
}
