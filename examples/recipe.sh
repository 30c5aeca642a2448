# Sourced by the recipes: the steps they share, as commands made of a recipe's settings (see multi30k.sh). A recipe may
# change a step's command; `follow_plan` runs them in order. What is done is not done again, and training goes on from
# its last checkpoint. --dry-run prints the commands instead; other arguments go to fairseq-train.
#
# Variables and their defaults:
#   FAMILY=vaswani_transformer  or relative_transformer, weighted_transformer, weighted_relative_transformer;
#                               transformer is fairseq's own, in the same size
#   GPUS=                       GPUs to use on this host, each by a process (default: all; 0: train on CPUs)
#   PROCESSES=1                 with GPUS=0: processes on this host, which share its cores
#   NODES=1 NODE_RANK=0         hosts, and which of them this is; the first is at MASTER_ADDR=127.0.0.1,
#                               MASTER_PORT=29500 (one host: a port for each OUTPUT). slurm.sbatch sets all these
#   MAX_TOKENS=4096             tokens a process can take at a time; the batch stays the paper's
#   UPDATES= AVERAGE=           updates, and checkpoints to average (default: the paper's)
#   BATCH=                      source and target tokens an update sees (default: the paper's)
#   SEED=1                      of initialisation, dropout and the order of batches
#   MIRROR=                     folder with the corpus's files, where they cannot be fetched
#   OUTPUT=runs/...             checkpoints, logs and translations; the data go to data/
#   SMOKE=0                     1: a tiny model, few pairs and updates, to see that every step works
#   STEPS="prepare train average translate score"   do these only; on other hosts than the first: train
#
# Of the options for fairseq-train, --autocast bf16 or off may change from one start of a run to the next; without it
# the faster one is chosen when the run begins, and kept.

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

at_least() {  # number, names of variables that must hold whole numbers not below it
  local least=$1 name; shift
  for name in "$@"; do
    [[ ${!name} =~ ^[0-9]{1,9}$ ]] && [ "$((10#${!name}))" -ge "$least" ] ||
      fail "$name is ${!name}, and has to be a whole number of at least $least"
  done
}

dry_run="" further="" precision="" before=""
for argument in "$@"; do
  case $before$argument in
    --dry-run) dry_run=yes ;;
    --autocast) before=--autocast= ; continue ;;
    --autocast=*) precision=${argument#--autocast=} ;;
    *) further+=" $(printf '%q' "$argument")" ;;
  esac
  before=""
done
case $before$precision in "" | off | bf16) ;; *) fail "--autocast takes bf16 or off, and not '$precision'" ;; esac

# ---- what the papers set for each family: updates of base and big, checkpoints they average

family=${FAMILY:-vaswani_transformer}
case $family in
  vaswani_transformer | transformer) paper_updates=(100000 300000) paper_average=(5 20) ;;  # Vaswani et al. 2017, 5.2 and 6.1
  relative_transformer) paper_updates=(100000 300000) paper_average=(1 20) ;;               # Shaw et al. 2018, 4.1
  weighted_transformer) paper_updates=(60000 250000) paper_average=(1 1) ;;                 # Ahmed et al. 2017, 4
  weighted_relative_transformer) paper_updates=(60000 250000) paper_average=(1 1) ;;        # published nowhere: as the weighted
  *) fail "FAMILY=$family is none of vaswani_transformer, relative_transformer, weighted_transformer, weighted_relative_transformer, transformer" ;;
esac
big=$([[ $size == big* ]] && echo 1 || echo 0)

# Every recipe and family takes its optimizer from here; what it does to branch weights no other family has.
optimizer="--optimizer fused_adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-9 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7"

architecture=${family}_$size
if [ "$family" = transformer ]; then  # fairseq's own knows neither our option nor our names of sizes
  [ -z "$precision" ] || fail "--autocast $precision: fairseq's own transformer has no such option; leave it away"
  case $size in
    tiny)
      architecture=transformer
      for side in encoder decoder; do
        architecture+=" --$side-layers 4 --$side-embed-dim 128 --$side-ffn-embed-dim 256 --$side-attention-heads 4"
      done ;;
    iwslt_de_en) architecture=transformer_iwslt_de_en ;;
    base) architecture=transformer_wmt_en_de ;;
    big) architecture=transformer_vaswani_wmt_en_de_big ;;
    big_en_fr) architecture=transformer_vaswani_wmt_en_fr_big ;;
  esac
fi

# ---- how large

visible_gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then tr , '\n' <<< "$CUDA_VISIBLE_DEVICES" | grep -c '^[^-]'
  else nvidia-smi -L 2>/dev/null | grep -c '^GPU'; fi
}
GPUS=${GPUS:-$(visible_gpus || true)}
NODES=${NODES:-1} NODE_RANK=${NODE_RANK:-0} MAX_TOKENS=${MAX_TOKENS:-4096} SEED=${SEED:-1}
SMOKE=${SMOKE:-0}
if [ "$SMOKE" != 0 ]; then
  updates=30 average=2 checkpoints=10 batch=1000 warmup=10 architecture+=" --encoder-layers 1 --decoder-layers 1"
  architecture+=" --encoder-embed-dim 64 --decoder-embed-dim 64 --encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128"
  preparation+=" --max-pairs 1000 --bpe-operations 500"  # the last word of an option counts
  generation+=" --beam 1 --max-len-b 10"                 # an untrained model does not end its sentences
fi
UPDATES=${UPDATES:-${updates:-${paper_updates[big]}}} AVERAGE=${AVERAGE:-${average:-${paper_average[big]}}} BATCH=${BATCH:-$batch}
at_least 0 GPUS NODE_RANK SEED
PROCESSES=${PROCESSES:-$((10#$GPUS > 0 ? 10#$GPUS : 1))}
at_least 1 PROCESSES NODES MAX_TOKENS UPDATES AVERAGE BATCH
[ "$GPUS" = 0 ] || [ "$GPUS" = "$PROCESSES" ] ||
  fail "PROCESSES is $PROCESSES and GPUS $GPUS, and each GPU has one process; leave PROCESSES away, or take CPUs: GPUS=0"
[ "$NODE_RANK" -lt "$NODES" ] || fail "NODE_RANK is $NODE_RANK and NODES $NODES; hosts are counted from 0"

# The batch is the paper's on any number of processes: as few passes an update as MAX_TOKENS allows, all equally large.
# fairseq counts the longer side of its batches, so these are at most so many source and so many target tokens.
workers=$((PROCESSES * NODES))
update_freq=$(((BATCH + workers * MAX_TOKENS - 1) / (workers * MAX_TOKENS)))
max_tokens=$(((BATCH + workers * update_freq / 2) / (workers * update_freq)))
[ "$max_tokens" -ge 300 ] ||  # fairseq leaves out sentences longer than that
  fail "BATCH=$BATCH with MAX_TOKENS=$MAX_TOKENS leaves $max_tokens tokens at a time to each of $workers processes" \
    "(GPUS=$GPUS PROCESSES=$PROCESSES NODES=$NODES), less than a long sentence has; take fewer of them, or more tokens"

steps="prepare train average translate score" log=train.log
[ "$NODE_RANK" = 0 ] || steps=train log=train.$NODE_RANK.log  # the first host does the rest, in the same folders
STEPS=${STEPS:-$steps}
for word in $STEPS; do
  [[ $word =~ ^(prepare|train|average|translate|score)$ ]] ||
    fail "STEPS=$STEPS: $word is none of prepare, train, average, translate, score"
done

if [ -n "${MIRROR:-}" ]; then
  [ -d "$MIRROR" ] || fail "MIRROR=$MIRROR: there is no such folder"
  MIRROR=$(cd "$MIRROR" && pwd)
fi

name=$corpus.$source-$target; [ "$SMOKE" = 0 ] || name+=.smoke
data=data/$name
run=${OUTPUT:-runs/${family}_$size.$name.seed$SEED}
[[ $run != *[[:space:]]* ]] || fail "OUTPUT=$run: take a folder without spaces in its name"

# ---- the steps, with $data and $run

prepare="python data-prep/prepare.py $corpus --source-lang $source --target-lang $target --output \$data \\
    $preparation${MIRROR:+ --mirror \"\$MIRROR\"}"

if [ "$checkpoints" = epoch ]; then
  saving="--keep-last-epochs $AVERAGE"
else  # a checkpoint every so many updates; where an epoch ends fairseq makes none, so at least one more than needed
  interval=$((UPDATES / (AVERAGE + 2)))
  interval=$((interval < 1 ? 1 : interval < checkpoints ? interval : checkpoints))
  saving="--no-epoch-checkpoints --save-interval-updates $interval --keep-interval-updates $AVERAGE"
fi
# fairseq starts as many processes as it sees GPUs unless it is told how many. One that dies ends all that torchrun started.
launch=fairseq-train world="--distributed-world-size $workers"
if [ "$workers" -gt 1 ]; then
  port=29500
  # Other runs may train on the same host.
  if [ "$NODES" = 1 ]; then port=$((20000 + $(cksum <<< "$run" | cut -d ' ' -f 1) % 12000)); fi
  MASTER_PORT=${MASTER_PORT:-$port}
  at_least 1 MASTER_PORT
  launch="torchrun --nnodes $NODES --node-rank $NODE_RANK --nproc-per-node $PROCESSES \\
    --master-addr ${MASTER_ADDR:-127.0.0.1} --master-port $MASTER_PORT --no-python"
  if [ "$GPUS" != 0 ]; then
    launch+=" fairseq-train"
  else  # fairseq reads torchrun's variables only where it counts GPUs
    launch+=" \\
  bash -c 'exec fairseq-train \"\$@\" --distributed-rank \"\$RANK\"' -"
    world+=" --distributed-init-method env:// --distributed-no-spawn \\
    --distributed-backend gloo --ddp-backend legacy_ddp"
  fi
fi
if [ "$GPUS" = 0 ]; then
  world+=" --cpu"
  threads=$(($(getconf _NPROCESSORS_ONLN) / PROCESSES))
  [ "$PROCESSES" = 1 ] || launch="OMP_NUM_THREADS=\${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))} $launch"
  # glibc hands large blocks back and gets them again page by page: up to a fifth of a step
  launch="MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 MALLOC_ARENA_MAX=1 \\
  $launch"
fi

# The precision is chosen when a run begins, on the first of the machines that train, and kept where it goes on.
faster="python -m user_dir.tools.precision" autocast="" overrides=""
choose="mkdir -p \$run"
if [ "$family" != transformer ]; then
  # An average is translated where it stands, in what is faster there.
  overrides="--model-overrides \"{'autocast': '\$($faster)'}\""
  autocast='--autocast "$(cat $run/precision)"'
  if [ -n "$precision" ]; then autocast="--autocast $precision"; choose+="; echo $precision > \$run/precision"
  elif [ "$NODE_RANK" = 0 ]; then choose+="; [ -s \$run/precision ] || $faster > \$run/precision"
  else choose+="; until [ -s \$run/precision ]; do sleep 1; done"; fi
fi

frozen=$((UPDATES < 60000 ? UPDATES / 6 : 10000))  # updates at the end; Ahmed et al. 2017, 4: 10,000 of 60,000 and of 250,000
options="\\
    --arch $architecture \\
    $training --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \\
    $optimizer --branch-frozen-updates $frozen \\
    --lr $rate --warmup-updates $warmup --max-update $UPDATES --seed $SEED"
# fairseq makes batches once, from the seed and the epoch in which it was started; a run that goes on in a later epoch
# would meet others. --update-epoch-batch-itr makes them anew in each epoch, of its number.
train="$choose
$launch \$data/data-bin --save-dir \$run --user-dir user_dir \\
    $world $options \\
    $saving --update-epoch-batch-itr True \\
    --max-tokens $max_tokens --update-freq $update_freq $autocast \\
    --log-format simple --log-interval $((UPDATES < 1000 ? 10 : 100))$further 2>&1 |
  tee -a \$run/$log | sed -nE 's/.* \| (train_inner|valid) \| //p'"

averaged="\$run --last $AVERAGE --by $([ "$checkpoints" = epoch ] && echo epoch || echo update)"
[ "$AVERAGE" != 1 ] || averaged=\$run/checkpoint_last.pt
average="python -m user_dir.tools.average_checkpoints $averaged --output \$run/average.pt"

# Without --required-batch-size-multiple 1 fairseq leaves out the last sentences of a set whose size is no multiple of 8.
# Lower-cased texts are not detokenised: their published scores are of tokens.
scored="--reference \$data/raw/test.$target" detokenise="--tokenizer moses"
[[ $preparation != *--lowercase* ]] || scored="--target-lang $target" detokenise=""
translate="fairseq-generate \$data/data-bin --source-lang $source --target-lang $target --user-dir user_dir \\
    --path \$run/average.pt --max-tokens 6000 --required-batch-size-multiple 1 --remove-bpe $detokenise \\
    $generation $overrides > \$run/generate.log 2> \$run/generate.err
grep ^D- \$run/generate.log | sort -t- -k2n | cut -f3- > \$run/translations.$target"
score="python -m user_dir.tools.score \$run/generate.log $scored | tee \$run/score.txt"

step() {  # name, file that is there when it is done (or "", where the command knows), command, its log, help if it fails
  case " $STEPS " in *" $1 "*) ;; *) return 0 ;; esac
  printf '\n# %s\n' "$1"
  if [ -z "$dry_run" ] && [ -n "$2" ] && [ -e "$2" ]; then echo "$2 is there"; return; fi
  echo "$3"
  [ -z "$dry_run" ] || return 0
  if ! data=$data run=$run MIRROR=${MIRROR:-} bash -euo pipefail -c "$3"; then
    # A process's own words, without torchrun's forty lines about the others.
    if [ -n "${4:-}" ]; then
      tail -n 100 "$4" | sed '/^[EW][0-9]* .*elastic.multiprocessing/,/^Root Cause/d' | tail -n 20 >&2
      echo "above: the end of $4" >&2
    fi
    fail "could not $1${5:-; mend what is said above, and the same command goes on from here}"
  fi
  [ -z "$2" ] || touch "$2"
}

follow_plan() {  # what to compare with
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  echo "# $family ($size) on $name: $workers x $update_freq x $max_tokens = $((workers * update_freq * max_tokens)) source and target tokens an update, $UPDATES updates"
  echo "data=$data run=$run${MIRROR:+ MIRROR=$(printf '%q' "$MIRROR")}"
  if [ "$GPUS" = 0 ]; then  # the commands below use any GPU that they see
    export CUDA_VISIBLE_DEVICES=
    echo "export CUDA_VISIBLE_DEVICES="
  fi
  if [ -z "$dry_run" ]; then
    . examples/environment.sh
    if [ -e "$run/options" ] && [ "$(cat "$run/options")" != "$data $options$further" ]; then
      fail "$run holds a run with other options (see $run/options); name another folder: OUTPUT=..."
    fi
  fi
  step prepare "" "$prepare" "" "; where files cannot be fetched, put them into a folder and run MIRROR=FOLDER $0"
  if [ -z "$dry_run" ] && [[ " $STEPS " == *" train "* ]] && [ ! -e "$run/trained" ]; then
    if [ "$GPUS" != 0 ]; then
      local seen; seen=$(python -c 'import torch; print(torch.cuda.device_count())')
      [ "$seen" -ge "$GPUS" ] || fail "GPUS is $GPUS, and torch sees $seen on this host; GPUS=0 trains on CPUs"
    fi
    mkdir -p "$run"
    echo "$data $options$further" > "$run/options"
    if [ -s "$run/precision" ]; then
      echo "# $run has been trained with --autocast $(cat "$run/precision")${precision:+ so far, now with $precision}"
    fi
  fi
  step train "$run/trained" "$train" "$run/$log"
  step average "$run/average.pt" "$average"
  step translate "$run/translated" "$translate" "$run/generate.err"
  step score "" "$score"
  printf '\n# to compare with\n%s\n' "$1"
}
