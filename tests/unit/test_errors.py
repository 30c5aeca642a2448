"""A refusal: an exception where this package is a library, one line in a command of fairseq's."""

import asyncio
import sys
import traceback

import pytest
from omegaconf import MissingMandatoryValue
from torch.multiprocessing import ProcessRaisedException

from user_dir.errors import InputError, report_input_errors_in_one_line
from user_dir.serving.translator import Translator


@pytest.mark.parametrize("wrapped", [asyncio.create_task, lambda opening: asyncio.wait_for(opening, 60)])
def test_a_server_outlives_a_refusal(wrapped):
    """asyncio would raise a SystemExit again, past whoever catches it."""

    async def handle():
        with pytest.raises(ValueError, match="there is no checkpoint nowhere.pt"):
            await wrapped(asyncio.to_thread(Translator, "nowhere.pt"))
        return "went on"

    assert asyncio.run(handle()) == "went on"


@pytest.fixture
def hook(monkeypatch):
    """hook(command): sys.excepthook as the command of that path has it; None if nothing changed it."""

    def usual(kind, error, trace):
        print("traceback of", kind.__name__, file=sys.stderr)

    def hook(command):
        monkeypatch.setattr(sys, "argv", [command])
        monkeypatch.setattr(sys, "excepthook", usual)
        report_input_errors_in_one_line()
        return None if sys.excepthook is usual else sys.excepthook

    return hook


@pytest.mark.parametrize("command", ["", "-c", "server.py", "/usr/bin/pytest", "/x/fairseq-7/server.py"])
def test_a_program_keeps_its_excepthook(hook, command):
    assert hook(command) is None


def raised_in(cause, error):
    """`error`, with which fairseq fails while it looks into `cause`."""
    error.__context__ = cause
    return error


def in_another_process(error):
    """As torch.multiprocessing.spawn hands it on."""
    try:
        try:
            raise InputError("the cause")
        except InputError as cause:
            raise error from cause
    except type(error):
        words = f"\n\n-- Process 1 terminated with the following error:\n{traceback.format_exc()}"
    return ProcessRaisedException(words, 1, 2)


DIVERGED = FloatingPointError("gradients are Nan/Inf")
SEARCHES = "--sampling, --diverse-beam-groups, --match-source-len and --diversity-rate"


@pytest.mark.parametrize(
    "error, words",
    [
        (InputError("x is not\n  y: do z"), "x is not y: do z"),
        (InputError("no model \x1b[2Jx"), "no model ?[2Jx"),
        (InputError("not so"), "not so"),
        (ValueError("a mistake"), "traceback of ValueError"),
        (AssertionError("x; please reset the optimizer (y)"), "x; please reset the optimizer (y)"),
        (OSError("Model file not found: a.pt"), "{}: name a checkpoint"),
        (OSError(28, "No space left on device", "a.pt"), "{}: free some, and run the same command again"),
        (OSError(122, "Disk quota exceeded", "a.pt"), "{}: free some, and run the same command again"),
        (AssertionError("Source and target must contain the same number of examples"), "{}: prepare the data again"),
        (AssertionError("x. Make sure that --dataset-impl y"), "--dataset-impl: the data are of another kind: omit it"),
        (AssertionError("should not exceed max_tokens=1"), "{}: give a larger --max-tokens"),
        (AssertionError("--batch-size cannot be larger than --buffer-size"), "{}: give a larger --buffer-size"),
        (AssertionError("--path required for generation!"), "{}: name a checkpoint"),
        (AssertionError("--replace-unk requires x"), "--replace-unk: fairseq would fail: omit it"),
        (AssertionError("--sampling requires --nbest x"), "{}: give both the same number"),
        (AssertionError("--sampling-topk requires --sampling"), "{}: add it"),
        (AssertionError("--temperature must be greater than 0"), "{}"),
        (AssertionError("min_len cannot be larger x"), "--min-len: no translation may be so long: give a smaller one"),
        (RuntimeError("selected index k out of range"), "--sampling-topk: the dictionary has fewer words: give fewer"),
        (ValueError("Provided Search parameters are mutually exclusive."), f"give only one of {SEARCHES}"),
        (
            NotImplementedError("Target-side constraints were provided, but search method doesn't support them"),
            f"--constraints: omit {SEARCHES}",
        ),
        (
            ValueError("DiverseBeamSearch requires --beam to be divisible by the number of groups"),
            "--diverse-beam-groups has to divide --beam",
        ),
        (
            type("ConfigCompositionException", (Exception,), {})("x lr_scheduler.total_num_update=null"),
            "--lr-scheduler polynomial_decay needs --total-num-update: give it the number of --max-update",
        ),
        (
            type("ConfigCompositionException", (Exception,), {})("Error merging override tokenizer.source_lang=null"),
            "--tokenizer moses needs the languages: add --source-lang and --target-lang",
        ),
        (AssertionError("world size is 2 but have 0 available devices"), "--distributed-world-size: {}: give fewer"),
        (AssertionError("x or --lr-period-updates must be set"), "--lr-scheduler cosine needs --max-update: add it"),
        (
            UnboundLocalError("cannot access local variable 'valid_losses' where it is not associated with a value"),
            "no update is left in the epoch: omit --skip-remainder-batch, or add --reset-dataloader",
        ),
        (KeyError("best"), "the checkpoint's --lr-scheduler is another one: add --reset-lr-scheduler"),
        (KeyError("last"), "traceback of KeyError"),
        (ValueError("malformed node or string"), "an option is not written as Python does (True, False, numbers): {}"),
        (Exception("x; skip this example with --skip-invalid"), "{}, or shorten it"),
        (
            Exception("The dataset is empty. x"),
            "no pair makes a batch: all are too long, or training has fewer than 8: add "
            "--required-batch-size-multiple 1",
        ),
        (ImportError("x. Please install fairscale"), "{}"),
        (ImportError("\n\nPlease install it:\n\n  pip install it"), "Please install it: pip install it"),
        (MissingMandatoryValue("Missing mandatory value: bpe_codes"), "--bpe needs its codes: add --bpe-codes"),
        (ValueError("--cpu-offload requires --ddp-backend=fully_sharded"), "{}"),
        (ValueError("x: Set --combine-val to combine them"), "{}"),
        (
            RuntimeError("relaunch training with `--reset-dataloader` and"),
            "the checkpoint's epoch has other batches: add --reset-dataloader",
        ),
        (
            RuntimeError("[pair.cc:1] Connection closed by peer [127.0.0.1]:2"),
            "another process of this training has ended: its own message says why",
        ),
        (
            ValueError("loaded state dict has a different number of parameter groups"),
            "the checkpoint's optimizer is that of another model: add --reset-optimizer",
        ),
        (ValueError("--finetune-from-model and x: {'all': 1}"), "--finetune-from-model and x"),
        (FloatingPointError("Minimum loss scale x"), "Minimum loss scale x"),
        (DIVERGED, "{}: the training has diverged: lower --lr, or add --clip-norm 1"),
        (raised_in(FloatingPointError("Minimum loss scale x"), StopIteration()), "Minimum loss scale x"),
        # as with our models
        (raised_in(DIVERGED, StopIteration()), "{}: the training has diverged: lower --lr, or add --clip-norm 1"),
        (in_another_process(InputError("not\nso")), "not so"),
        (in_another_process(KeyError("a mistake")), "traceback of ProcessRaisedException"),
        (in_another_process(AssertionError("x; please reset the optimizer (y)")), "x; please reset the optimizer (y)"),
        (in_another_process(ValueError("--finetune-from-model and x: {'all': 1}")), "--finetune-from-model and x"),
    ],
    ids=lambda value: str(value)[:20].strip(),
)
def test_a_command_of_fairseqs_says_one_line(hook, capsys, error, words):
    """{}: the error's own message, or that of the one that fairseq was looking into."""
    for command in ("/bin/fairseq-train", "fairseq-generate", "/x/fairseq_cli/interactive.py"):
        hook(command)(type(error), error, error.__traceback__)
        assert capsys.readouterr().err == f"{words.format(error.__context__ or error)}\n"
