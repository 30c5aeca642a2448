"""Options that cannot be trained with: fairseq-train ends in one line that says how to fix it."""

import os
import re

import pytest
from integration.refusals import BRANCHES, PLAIN, RELATIVE, TASK, TRAINED, WEIGHTED, assert_refused, check_input
from omegaconf import OmegaConf

from user_dir.training.model_options import unknown_options

from support import PROJECT

METRIC, POLYNOMIAL = "--best-checkpoint-metric", "--lr-scheduler polynomial_decay --total-num-update"
WARM_UP = "--stop-min-lr 1e-09: the warm-up begins with .*: omit"
INPUT = [
    ("--bf16", "--bf16 .*: train with --autocast bf16, and an architecture of fairseq's own in float32"),
    ("--tpu", "--tpu needs a TPU: omit it"),
    ("--tpu --bf16", "--bf16 .*fairseq's own in float32; --tpu needs a TPU: omit it"),
    ("--fp16", "--fp16 needs a GPU: train with --autocast bf16, and .* fairseq's own in float32"),
    ("--fp16 --autocast bf16", "--autocast bf16 .*--fp16, .*: omit one"),
    ("--memory-efficient-fp16 --autocast bf16", "--autocast bf16 .*--fp16, .*: omit one"),
    ("--memory-efficient-fp16 --store-ema", "--store-ema with --fp16 keeps .* in float16, .*: add --ema-fp32"),
    ("--amp --autocast bf16", "--autocast bf16 .*--amp, .*: omit one"),
    ("--autocast bf16 --ddp-backend fully_sharded", "--autocast bf16 .* fully_sharded: use pytorch_ddp"),
    ("--checkpoint-suffix=-b", "--checkpoint-suffix: .*use another --save-dir"),
    ("--quantization-config-path x.yaml", "--quantization-config-path: .* cannot load .*: omit it, and use nmt-export"),
    ("--num-batch-buckets 2", "--num-batch-buckets .*: omit it"),
    ("--save-interval 0 --update-freq 0", "--save-interval 0: give at least 1; --update-freq 0: give at least 1"),
    (
        "--validate-interval 0 --log-interval 0 --update-freq 1,0",
        "--validate-interval 0: give at least 1; --log-interval 0: give at least 1; --update-freq 0: give at least 1",
    ),
    (f"{METRIC} bleu --maximize-best-checkpoint-metric", "bleu needs --eval-bleu: add it"),
    (f"{METRIC} bleu --eval-bleu", "bleu would keep the lowest: add --maximize-best-checkpoint-metric"),
    (f"{METRIC} accuracy", "accuracy needs --report-accuracy: add it; .*would keep the lowest: add --max"),
    (f"{METRIC} sacrebleu --eval-bleu", "--best-checkpoint-metric sacrebleu: choose from loss, .*bleu"),
    (f"{METRIC} BLEU --eval-bleu", "--best-checkpoint-metric BLEU: choose from loss, .*bleu"),
    (f"{METRIC} perplexity", "--best-checkpoint-metric perplexity: choose from loss, .*bleu"),
    ("--lr 0.25", "--lr is missing, or 0.25, .*: add one such as --lr 5e-4"),
    (f"{POLYNOMIAL} 5 --max-update 9", "--total-num-update 5: .*max-update is 9: give"),
    ("--warmup-updates 0", "--warmup-updates 0: .*inverse_sqrt divides by it: give at least 1"),
    ("--lr 1e-3,1e-4", "--lr with 2 rates needs --lr-scheduler fixed, not inverse_sqrt: give one"),
    (
        f"--lr 1e-3,1e-4 {POLYNOMIAL} 9 --max-update 9",
        "--lr with 2 rates needs --lr-scheduler fixed, not polynomial_decay: give one",
    ),
    *[
        (f"--lr 1e-3,1e-4 --lr-scheduler {schedule}", f"needs --lr-scheduler fixed, not {schedule}: give one")
        for schedule in ("cosine", "reduce_lr_on_plateau", "step")
    ],
    ("--lr-scheduler cosine --max-update 9 --warmup-updates 9", "--warmup-updates 9: .*: raise --max-update"),
    ("--stop-min-lr 1e-9", "--stop-min-lr 1e-09: the warm-up begins with a rate of 0.0: omit it"),
    ("--fp16 --amp", "--fp16 cannot be combined with --amp: omit one"),
    ("--fp16 --update-freq 2,1", "--fp16 with several .* --update-freq needs --fp16-scale-window: add one"),
    ("--stop-min-lr 0", "--stop-min-lr 0.0: the warm-up begins with a rate of 0.0: omit it"),
    ("--lr-scheduler cosine --max-update 9 --stop-min-lr 1e-9", WARM_UP),
    (f"{POLYNOMIAL} 9 --max-update 9 --stop-min-lr 1e-9", WARM_UP),
    ("--lr-scheduler step --stop-min-lr 1e-9", WARM_UP),
    (f"--restore-file {__file__} --reset-optimizer --stop-min-lr 1e-9", WARM_UP),
    (f"--finetune-from-model {__file__} --stop-min-lr 1e-9", WARM_UP),
    ("--amp --amp-scale-window 500", "--amp-scale-window 500: fairseq takes --amp-init-scale for it: omit it"),
    ("--amp --amp-init-scale 16", "--amp-init-scale 16: fairseq begins with --fp16-init-scale: give that"),
    ("--valid-pairs=-5", "--valid-pairs -5: give a number of pairs, or 0 for all"),
    ("--patience 3 --validate-interval-updates 4", "--validate-interval-updates 4: .*: add --save-interval-updates 4"),
    ("--lr-scheduler reduce_lr_on_plateau --stop-min-lr 1e-9", WARM_UP),
    (f"{POLYNOMIAL} 5", "--total-num-update 5: .*max-update is 0: give"),
    ("--lr-scheduler reduce_lr_on_plateau --disable-validation", "plateau needs validations: omit --disable-valid"),
    ("--load-alignments", "--load-alignments has no effect on --criterion .*: use label_smoothed_cross_entropy_with_"),
    ("--load-alignments --criterion label_smoothed_cross_entropy", "label_smoothed_cross_entropy: use label_"),
    (
        "--load-alignments --criterion label_smoothed_cross_entropy_with_alignment --best-checkpoint-metric BLEU",
        "--best-checkpoint-metric BLEU: choose from loss, .*bleu",
    ),
    ("--grouped-shuffling --distributed-world-size 2", "--grouped-shuffling leaves out the longest .*: omit it"),
    ("--combine-val --valid-subset valid,test", "--valid-subset valid,test: --combine-val reads valid, .*: omit one"),
    ("--max-valid-steps 3", "--max-valid-steps takes the shortest sentences, .*: use --valid-pairs"),
    ("--label-smoothing 1", "--label-smoothing 1.0: give a number from 0 to below 1"),
    ("--label-smoothing=-0.1", "--label-smoothing -0.1: give a number from 0 to below 1"),
    ("--label-smoothing 10", "--label-smoothing 10.0: give a number from 0 to below 1"),
    (
        "--patience 3 --save-interval 2 --save-interval-updates 2 --validate-interval-updates 3",
        "--validate-interval 1: --patience .*: add --save-interval 1; .*: add --save-interval-updates 3",
    ),
    ("--maximize-best-checkpoint-metric", "metric loss would keep the highest: omit --maximize"),
    ("--eval-bleu --eval-bleu-detok mooses", "--eval-bleu-detok mooses: choose from .*moses"),
    ("--eval-bleu --eval-bleu-remove-bpe true", "--eval-bleu-remove-bpe true: give '@@ ' or sentencepiece"),
    ("--eval-bleu --eval-bleu-args {beam:4}", "--eval-bleu-args {beam:4}: give a JSON object"),
    ("--eval-bleu --eval-bleu-detok-args [4]", r"--eval-bleu-detok-args \[4\]: give a JSON object"),
    ('--eval-bleu --eval-bleu-args {"beem":4}', "--eval-bleu-args: .* no option beem: correct the name"),
    ('--eval-bleu --eval-bleu-args {"lenpen_form":"vaswani"}', "no option lenpen_form: .*--lenpen-form"),
    ("--max-tokens 1", "--max-tokens 1: .* has 2 subwords: give"),
    ("--max-target-positions 1", "--max-target-positions 1: the shortest .* has 2 subwords: give"),
    ("--max-tokens 7", "--max-tokens-valid 7 .default: --max-tokens.: "),
    ("--max-source-positions 7", "--max-source-positions 7: .*valid.* has 9 subwords: add --skip-invalid"),
    ("--branch-weights softmax", "--branch-weights softmax has no effect without --branched-attention: omit it"),
]


@pytest.mark.parametrize("more, words", INPUT)
def test_input(copies, more, words):
    assert_refused(words, copies, more)


@pytest.mark.parametrize("subword, value", [("sub@@", ""), ("▁sub", " sentencepiece")])
def test_bleu_of_subwords(data, subword, value):
    with open(data / "dict.tgt.txt", "a", encoding="utf-8") as dictionary:
        dictionary.write(f"{subword} 1\n")
    removed = "--eval-bleu --eval-bleu-detok space --eval-bleu-remove-bpe"
    for wrong in (removed.removesuffix(" --eval-bleu-remove-bpe"), removed + (not value) * " sentencepiece"):
        assert_refused("--eval-bleu would score subwords: add --eval-bleu-remove-bpe", data, wrong)
    check_input(data, removed + value)


def test_choices_that_are_sound(copies):
    """Next to those above."""
    check_input(copies, "--lr 1e-3,1e-4 --lr-scheduler fixed --stop-min-lr 1e-9 --grouped-shuffling")
    check_input(copies, "--warmup-init-lr 1e-7 --stop-min-lr 1e-9 --patience 3")
    check_input(copies, f"--restore-file {__file__} --stop-min-lr 1e-9")
    check_input(copies, "--lr-scheduler cosine --max-update 9 --min-lr 1e-5 --stop-min-lr 1e-9")
    for limit in ("9 --max-update 9", "9 --max-epoch 1", "9 --stop-time-hours 1"):
        check_input(copies, f"{POLYNOMIAL} {limit}")
    check_input(copies, f"{POLYNOMIAL} 5 --max-update 9 --end-learning-rate 1e-5")
    check_input(copies, "--lr-scheduler cosine --max-update 9 --warmup-updates 0 --stop-min-lr 1e-9")
    check_input(copies, "--lr-scheduler cosine --warmup-updates 9 --max-update 9 --lr-period-updates 5")
    check_input(copies, lr_scheduler="tri_stage", decay_steps=5)
    check_input(copies, "--max-update 9", lr_scheduler="tri_stage", decay_steps=0, phase_ratio=[0.1, 0.4, 0.5])
    check_input(copies, lr_scheduler="triangular", max_lr=1e-2)
    check_input(copies, "--batch-size 8", max_tokens=None, max_tokens_valid=None)
    check_input(copies, "--amp", autocast=False)  # hydra's off without quotation marks, which the model refuses
    check_input(copies, "--best-checkpoint-metric ppl")
    check_input(copies, "--patience 3 --save-interval-updates 2 --validate-interval-updates 4")
    check_input(copies, "--patience 3 --no-save --validate-interval-updates 4")
    check_input(copies, "--best-checkpoint-metric nll_loss --sentence-avg", criterion="cross_entropy")
    check_input(copies, "--memory-efficient-fp16 --update-freq 2,1 --fp16-scale-window 2000")
    check_input(copies, "--lr 0.25 --ema-seed-model not-read.pt", optimizer="sgd")


def test_a_precision_without_effect(copies, caplog):
    """On CPUs fairseq trains in float32 with --amp, without a word."""
    for words in ("--cpu", "--cpu --amp"):
        check_input(copies, words)
        assert ("--amp has no effect without a GPU: train with --autocast bf16, " in caplog.text) == ("--amp" in words)


NO_METRIC = "metric .*: --criterion cross_entropy has loss and ppl only: choose one"
NO_AMP = "--amp .*--checkpoint-activations, .*: train with --autocast bf16"
GIVEN = [
    ({"words": f"{METRIC} nll_loss", "criterion": "cross_entropy"}, NO_METRIC),
    ({"words": "--load-alignments", "criterion": "cross_entropy"}, "--load-alignments has no effect .*: use"),
    ({"words": f"{METRIC} accuracy --maximize-best-checkpoint-metric", "criterion": "cross_entropy"}, NO_METRIC),
    *[
        ({"lr_scheduler": "tri_stage", "decay_steps": 0, "phase_ratio": ratio}, "tri_stage needs --decay-steps, .*: a")
        for ratio in (None, [0.1, 0.4, 0.5])
    ],
    ({"lr_scheduler": "triangular", "max_lr": 5e-3}, "--max-lr 0.005: .* begins with --lr 0.005: give more"),
    ({"lr_scheduler": "tri_stage"}, "tri_stage needs --decay-steps, .*: add them"),  # hydra's, with nothing else
    # As fairseq-hydra-train may have them: it has no default schedule, and with the last one would train in float32.
    ({"lr_scheduler": None}, "lr_scheduler is missing: add lr_scheduler._name"),
    ({"criterion": None}, "criterion is missing: add criterion._name"),
    ({"words": "--eval-bleu", "eval_bleu_args": None}, "--eval-bleu-args None: give a JSON object"),
    ({"words": "--amp", "offload_activations": True}, NO_AMP),
    ({"memory_efficient_fp16": True}, "common.memory_efficient_fp16 has no effect without common.fp16=true: add it"),
    ({"memory_efficient_bf16": True}, "common.memory_efficient_bf16 has no effect without common.bf16=true: add it"),
]


@pytest.mark.parametrize("given, said", GIVEN)
def test_input_that_is_not_typed(copies, given, said):
    assert_refused(said, copies, **given)


def test_a_whole_number_is_a_number_and_positions_are_compared():
    """In fairseq-hydra-train's options of the model."""
    given = OmegaConf.create({"_name": f"{PLAIN}_tiny", "arch": None, "dropout": 0})
    positions = {"max_source_positions": 1024, "max_target_positions": 9}
    found = [*unknown_options(given, positions)]
    assert found == ["task.max_target_positions 9 and model.max_target_positions 1024: give both the same number"]
    given.encoder_layers = "6"
    words = "model.encoder_layers '6': give a whole number, without quotation marks"
    assert [*unknown_options(given, positions)] == [words, *found]


OPTIMIZERS = [
    ("transformer", "--max-tokens 1", "--max-tokens 1: .* has 2 subwords: give"),  # fairseq's own
    (PLAIN, "-s de -t en", "no dict.de.txt and no dict.en.txt: .* --source-lang"),
    (PLAIN, "--max-tokens-valid 7", "--max-tokens-valid 7 .*valid.* has 9 subwords: give"),
    (RELATIVE, "--relative-attention all --left-pad-target", "--left-pad-target cannot be combined with"),
    (PLAIN, "--branches 4 --neighbourhood 9", "--neighbourhood 9 has no effect without .*; --branches 4 .*: omit it"),
    (RELATIVE, "--relative-positions neither --relative-distance 4", "--relative-distance 4 has no effect .*: omit"),
    (PLAIN, "--adaptive-softmax-cutoff 10,20", "--adaptive-softmax-cutoff .*: use a subword vocabulary"),
    (PLAIN, "--decoder-embed-path no.txt", "--decoder-embed-path: there is no file no.txt: name another"),
    (PLAIN, "--share-all-embeddings --decoder-embed-dim 64", "-embed-dim 32 and .*-embed-dim 64: change one of them"),
    (PLAIN, "--store-ema --ema-seed-model no.pt", "--ema-seed-model: there is no file no.pt: name another"),
    (PLAIN, "--bf16 --max-tokens 1", "--bf16 .*: .*; --max-tokens 1: .* has 2 subwords: give"),
    (PLAIN, "--adam-betas 0.9", "--adam-betas 0.9: give two numbers"),
    (PLAIN, "--adam-betas (0.9,x)", "--adam-betas .*: give two numbers"),
    (PLAIN, "--adam-betas ('0.9','0.98')", "--adam-betas .*: give two numbers"),
    (PLAIN, "--adam-betas (0.9,1.5)", "1.5: change .*--adam-betas"),
    (PLAIN, "--amp --checkpoint-activations", NO_AMP),
    (PLAIN, "--lr -1", "-1.0: change --lr"),
    (PLAIN, "--adam-eps -1", "-1.0: change .*--adam-eps"),
    (PLAIN, "--fp16-adam-stats", "--fp16-adam-stats .*adam: omit it"),
    (WEIGHTED, f"{BRANCHES} --ddp-backend slowmo", "--ddp-backend pytorch_ddp"),
    (WEIGHTED, "--branch-frozen-updates 10", "--max-update 2 .*: set .*--branch-frozen-updates"),
]


@pytest.mark.parametrize("family, more, words", OPTIMIZERS, ids=lambda value: value[-40:])
def test_optimizers(refused, family, more, words):
    refused(words, family, more)


def test_no_optimizer(refused):
    refused("--optimizer .*: add --optimizer fused_adam", PLAIN, common=f"{TASK} --lr 0.1 --max-tokens 500")


@pytest.mark.parametrize(
    "more, words",
    [
        (f"--save-dir runs --encoder-attention-heads 3 {TRAINED}", "^--encoder-embed-dim 32"),
        ("--save-dir runs --lr 0.1 --optimizer fused_adam", "--max-tokens or --batch-size: .*add --max-tokens"),
        (f"--save-dir file {TRAINED}", "--save-dir: Not a directory: '.*file.*': name another folder"),
        (f"--save-dir file/runs {TRAINED}", "--save-dir: Not a directory: '.*file/runs': name another folder"),
        pytest.param(
            f"--save-dir locked/runs {TRAINED}",
            "--save-dir: Permission denied: '.*locked/runs': name another folder",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write"),
        ),
    ],
    ids=["a model", "no batch size", "file", "file/runs", "locked/runs"],
)
def test_the_line_is_all_that_python_adds(command, copies, tmp_path, more, words):
    """As a person sees it: no traceback, and exit status 1."""
    (tmp_path / "file").write_text("precious")
    (tmp_path / "locked").mkdir(mode=0o500)
    places = ["--user-dir", PROJECT / "user_dir", "--arch", f"{PLAIN}_tiny"]
    done = command("fairseq-train", copies, *places, *more.split(), cwd=tmp_path, ok=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr and re.search(words, done.stderr.splitlines()[-1])
    assert (tmp_path / "file").read_text() == "precious"


HYDRA = [
    ("optimizer._name=adam ~optimizer.branch_frozen_updates", "train with --optimizer fused_adam"),
    ("+model.branch_weights=softmaxx", "--branch-weights softmaxx: choose from simplex, softmax, random"),
    ("+model.neighbourhood=9", "--neighbourhood 9 has no effect without --restricted-attention"),
    (
        "+model.droput=0.3 +model.dropout='0.3' model.share_all_embeddings=no +task.max_source_positions=9 "
        "+model.arch=x",
        "model.arch x has no effect .*; model.droput is no option of weighted_transformer_tiny: correct the name.*; "
        "model.dropout '0.3': give a number.*; model.share_all_embeddings 'no': give true or false.*; "
        "task.max_source_positions 9 and model.max_source_positions 1024: give both the same",
    ),
    ("lr_scheduler._name=inverse_sqr", "there is no lr_scheduler._name inverse_sqr: choose from .*inverse_sqrt"),
    ("model._name=weighted_transformer", "there is no model._name weighted_transformer: name a family with its size"),
    ("task.data=null", "task.data is not given: name the folder data-bin"),
]


@pytest.mark.parametrize("more, words", HYDRA)
def test_hydra(command, copies, tmp_path, more, words):
    """The error comes before the data loader's thread starts. The line below ours is hydra's."""
    config = ["--config-dir", PROJECT / "examples/hydra", "--config-name", "vaswani_transformer"]
    places = [f"common.user_dir={PROJECT / 'user_dir'}", f"task.data={copies}", f"checkpoint.save_dir={tmp_path}"]
    own = ["model._name=weighted_transformer_tiny", "optimization.max_update=2", *more.split()]
    done = command("fairseq-hydra-train", *config, *places, *own, cwd=tmp_path, ok=False)
    assert done.returncode == 1 and re.search(words, [line for line in done.stderr.splitlines() if line][-2])
    assert "begin training epoch" not in done.stderr + done.stdout and not [*tmp_path.glob("*.pt")]
