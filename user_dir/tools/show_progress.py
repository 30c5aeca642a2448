"""Shows how a training goes: a line for each report in fairseq-train's output, as soon as it is there.

    fairseq-train … --log-format simple 2>&1 | tee train.log | nmt-show-progress

prints lines such as "update 50 of 2400: loss 10.648, perplexity 1338.09, 9617 words/s, 5 s". Those of a validation
begin "update 1000 of 2400: valid loss …" and have no speed. JSON (--log-format json) is read as well. The number of
updates in all is the --max-update in fairseq's first lines.
"""

import re
import sys

from ..errors import InputError
from .shared.command import exit_in_one_line, new_parser
from .shared.training_log import read_line

# of the configuration that fairseq prints; 0 is no limit
LIMIT = re.compile(r"'max_update': ([1-9]\d*)")
# value in fairseq's log: how it is shown
VALIDATION = {"loss": "loss {:g}", "ppl": "perplexity {:g}", "bleu": "BLEU {:g}"}
TRAINING = {**VALIDATION, "wps": "{:g} words/s", "wall": "{:g} s"}


def progress(line: str, updates: int | None = None) -> str | None:
    """The report in `line` of fairseq's output, of `updates` in all; None if there is none, or it sums up an epoch."""
    read = read_line(line)
    if read is None or read[0] == "train":
        return None
    kind, values = read
    about, forms = ("", TRAINING) if kind == "train_inner" else (f"{kind} ", VALIDATION)
    update = f"update {values['num_updates']:.0f}{f' of {updates}' if updates else ''}"
    return f"{update}: {about}{', '.join(form.format(values[name]) for name, form in forms.items() if name in values)}"


@exit_in_one_line("nmt-show-progress")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-show-progress", __doc__)
    parser.parse_args(arguments)
    if sys.stdin is None:
        raise InputError("the standard input is closed: pipe fairseq-train's output into this command")
    sys.stdin.reconfigure(errors="replace")
    updates = None
    for line in sys.stdin:
        if limit := LIMIT.search(line):
            updates = int(limit[1])
        elif shown := progress(line, updates):
            print(shown, flush=True)


if __name__ == "__main__":
    main()
