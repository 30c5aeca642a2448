"""Errors in a user's input; each message says how to fix it."""

import pathlib
import re
import sys
import traceback

# Errors that fairseq raises before it sets up the task, and fairseq and torch after our checks: class (hydra's by name,
# so that tools do not import it), a part of the message, and the line for it.
LINES = [
    (AssertionError, "--max-tokens", "{}: for example, add --max-tokens 4096"),
    (AssertionError, "please reset the optimizer", "{}"),
    (AssertionError, "the same number of examples", "{}: prepare the data again"),
    (AssertionError, "Make sure that --dataset-impl", "--dataset-impl: the data are of another kind: omit it"),
    (AssertionError, "should not exceed max_tokens", "{}: give a larger --max-tokens"),
    (AssertionError, "--sampling requires --nbest", "{}: give both the same number"),
    (AssertionError, " requires --sampling", "{}: add it"),
    (AssertionError, "--batch-size cannot be larger", "{}: give a larger --buffer-size"),
    (AssertionError, "--path required", "{}: name a checkpoint"),
    (AssertionError, "--replace-unk requires", "--replace-unk: fairseq would fail: omit it"),
    (AssertionError, "--temperature must be", "{}"),
    (AssertionError, "min_len cannot be larger", "--min-len: no translation may be so long: give a smaller one"),
    (RuntimeError, "selected index k out of range", "--sampling-topk: the dictionary has fewer words: give fewer"),
    (AssertionError, "--lr-period-updates must be set", "--lr-scheduler cosine needs --max-update: add it"),
    (AssertionError, "available devices", "--distributed-world-size: {}: give fewer"),
    (ValueError, "malformed node or string", "an option is not written as Python does (True, False, numbers): {}"),
    (Exception, "skip this example with --skip-invalid", "{}, or shorten it"),
    (
        Exception,
        "The dataset is empty",
        "no pair makes a batch: all are too long, or training has fewer than 8: add --required-batch-size-multiple 1",
    ),
    (
        UnboundLocalError,
        "'valid_losses'",
        "no update is left in the epoch: omit --skip-remainder-batch, or add --reset-dataloader",
    ),
    (KeyError, "'best'", "the checkpoint's --lr-scheduler is another one: add --reset-lr-scheduler"),
    (
        ValueError,
        "Search parameters are mutually exclusive",
        "give only one of --sampling, --diverse-beam-groups, --match-source-len and --diversity-rate",
    ),
    (
        NotImplementedError,
        "constraints were provided",
        "--constraints: omit --sampling, --diverse-beam-groups, --match-source-len and --diversity-rate",
    ),
    (ValueError, "to be divisible by the number of groups", "--diverse-beam-groups has to divide --beam"),
    (OSError, "Model file not found", "{}: name a checkpoint"),
    (OSError, "No space left on device", "{}: free some, and run the same command again"),
    (OSError, "Disk quota exceeded", "{}: free some, and run the same command again"),
    (ValueError, "--combine-val to combine them", "{}"),
    (FloatingPointError, "gradients are Nan/Inf", "{}: the training has diverged: lower --lr, or add --clip-norm 1"),
    (FloatingPointError, "Minimum loss scale", "{}"),
    (FloatingPointError, "--ddp-backend", "{}"),
    (RuntimeError, "by peer", "another process of this training has ended: its own message says why"),
    (RuntimeError, "with `--reset-dataloader`", "the checkpoint's epoch has other batches: add --reset-dataloader"),
    (ImportError, "Please install", "{}"),
    (ValueError, "--cpu-offload requires", "{}"),
    ("MissingMandatoryValue", "bpe_codes", "--bpe needs its codes: add --bpe-codes"),
    (ValueError, "loaded state dict", "the checkpoint's optimizer is that of another model: add --reset-optimizer"),
    (
        "ConfigCompositionException",
        "total_num_update=null",
        "--lr-scheduler polynomial_decay needs --total-num-update: give it the number of --max-update",
    ),
    (
        "ConfigCompositionException",
        "tokenizer.source_lang=null",
        "--tokenizer moses needs the languages: add --source-lang and --target-lang",
    ),
]


class InputError(ValueError):
    """An invalid input. The message says in one line what is wrong, where, and how to fix it."""


def flag(name: str) -> str:
    """The option called `name` as it is typed: --relative-positions."""
    return f"--{name.replace('_', '-')}"


def one_line(message: str) -> str:
    """`message` with single spaces, and ? for control characters: names in files may hold a terminal's commands."""
    return re.sub("[\0-\x1f\x7f-\x9f]", "?", " ".join(message.split()))


def report_input_errors_in_one_line() -> None:
    """Makes fairseq's commands end with an InputError's message alone, without a traceback of twenty lines.

    A program of your own that imports this package keeps its sys.excepthook. A process that fairseq starts for a GPU
    passes its traceback to its parent process, which prints only the traceback's last line.
    """
    command = pathlib.Path(sys.argv[0] if sys.argv else "")
    if not command.name.startswith("fairseq-") and command.parent.name != "fairseq_cli":
        return
    previous_hook = sys.excepthook

    def hook(kind, error, trace):
        message = message_of(error, trace)
        if message is None:
            previous_hook(kind, error, trace)
        else:
            print(one_line(message), file=sys.stderr)

    sys.excepthook = hook


def message_of(error: BaseException, trace) -> str | None:
    """The message that replaces `error` and its traceback; None if it is neither an InputError nor a known one."""
    name, said, ours = original(error)
    if ours:
        return said
    if name == "ValueError" and said.startswith("--finetune-from-model"):
        return said.partition(": {")[0]  # the whole configuration follows
    if isinstance(error, OSError) and "verify_checkpoint_directory" in "".join(traceback.format_tb(trace)):
        return f"--save-dir: {error.strerror}: '{error.filename}': name another folder"
    lines = (line for of, words, line in LINES if name == getattr(of, "__name__", of) and words in said)
    return next((line.format(said) for line in lines), None)


def original(error: BaseException) -> tuple[str, str, bool]:
    """The class and message of `error`, or of the one that has led to it, and whether that is an InputError."""
    name, said, ours = type(error).__name__, str(error), isinstance(error, InputError)
    last_trace = said.rpartition("Traceback (most recent call last)")[2]  # its cause's comes first
    if name == "ProcessRaisedException" and (end := re.search(r"\n([\w.]+): (.*)", last_trace, re.DOTALL)):
        return end[1].rpartition(".")[2], end[2], end[1].startswith(f"{__package__}.")
    if not ours and isinstance(error.__context__, FloatingPointError):  # fairseq's NaN detector has failed on it
        return "FloatingPointError", str(error.__context__), False
    return name, said, ours
