"""Shared by tests of several tools: translations as files, output, refusals, and logs as fairseq itself writes them."""

import logging
import random

import pytest
from fairseq.logging import progress_bar
from sacremoses import MosesTokenizer

WORDS = 'the a state-of-the-art cat dog doesn\'t sees well-known "books" , 3.5 % in (Paris) and runs'.split()


class Files:
    """A reference of 120 sentences and translations of it, as files of a folder."""

    def __init__(self, folder):
        choose = random.Random(1)
        self.folder = folder
        self.sentences = [" ".join(choose.choices(WORDS, k=choose.randint(3, 20))) + "." for _ in range(120)]
        self.reference = self.write("test.en", self.sentences)

    def write(self, name, lines):
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    def plain(self, wrong, seed):
        """The references with that share of wrong words."""
        choose = random.Random(seed)
        texts = [
            " ".join(choose.choice(WORDS) if choose.random() < wrong else word for word in line.split())
            for line in self.sentences
        ]
        return self.write(f"{wrong}.{seed}.txt", texts)

    def generated(self, name, hypotheses, references, detokenised=True, skip=()):
        """As fairseq-generate prints it, the last segment first; D- is detokenised, or as H-."""
        moses, lines = MosesTokenizer("en"), []
        for number, (hypothesis, reference) in reversed([*enumerate(zip(hypotheses, references))]):
            tokens, truth = (moses.tokenize(text, return_str=True) for text in (hypothesis, reference))
            if number not in skip:
                lines += [f"S-{number}\tx", f"T-{number}\t{reference if detokenised else truth}"]
                lines += [f"H-{number}\t-0.5\t{tokens}"]
                lines += [f"D-{number}\t-0.5\t{hypothesis if detokenised else tokens}", f"P-{number}\t-0.1 -0.2"]
        return self.write(name, [*lines, "Generate test with beam=4: BLEU4 = 12.34"])


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def cells():
    """cells(text, first): the cells of the table's line that begins with `first`."""

    def cells(text, first):
        line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
        return [cell.strip() for cell in line.split("|")[2:-1]]

    return cells


@pytest.fixture
def printed(capsys):
    """printed(main, *arguments): what the tool has written to its standard output."""

    def printed(main, *arguments):
        main([*map(str, arguments)])
        return capsys.readouterr().out

    return printed


@pytest.fixture
def refusal():
    """refusal(main, *arguments, match=""): the one line, which has that, with which the tool ends."""

    def refusal(main, *arguments, match=""):
        with pytest.raises(SystemExit, match=match) as stop:
            main([*map(str, arguments)])
        line, name = stop.value.code, main.__module__.rpartition(".")[2].replace("_", "-")  # to stderr, exit status 1
        assert isinstance(line, str) and "\n" not in line and line.startswith(f"nmt-{name}: ")
        return line

    return refusal


@pytest.fixture
def fairseq_log():
    """fairseq_log(path, log_format, steps, header): a log with steps {tag: {number of updates: values}}.

    header: with time and logger before each line, as fairseq-train prints it; else as its --log-file
    """

    def fairseq_log(path, log_format, steps, header=False):
        handler = logging.FileHandler(path, mode="w")
        form = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
        handler.setFormatter(logging.Formatter(form if header else None))
        handler.setLevel(logging.INFO)
        progress_bar.logger.addHandler(handler)
        progress_bar.logger.setLevel(logging.INFO)
        progress_bar.logger.info("{'_name': None, 'num_updates': 3, 'epoch': 1}")
        for tag, points in steps.items():
            for updates, values in points.items():
                prefix = f"valid on '{tag}' subset" if tag.startswith("valid") else None
                options = {"log_format": log_format, "log_interval": 50, "epoch": 1, "prefix": prefix}
                bar = progress_bar.progress_bar([0] * 300, **options)
                next(iter(bar))
                step = bar.log if tag == "train_inner" else bar.print
                clock = {"wall": 7.0} if tag.startswith("train") else {}
                step({**clock, **values, "num_updates": updates}, tag=tag, step=updates)
        progress_bar.logger.removeHandler(handler)
        handler.close()
        return path

    return fairseq_log


@pytest.fixture
def steps():
    """The log of a training of 110 updates: what fairseq says of intervals, validations and an epoch."""
    return {
        "train_inner": {
            50: {"loss": 10.5, "ppl": 1461.8, "wps": 4471.8, "lr": 5e-4, "wall": 20.0},
            100: {"loss": 8.5, "ppl": 212.9, "wps": 4979.5, "lr": 1e-3, "wall": 40.0},
        },
        "valid": {
            75: {"loss": 9.0, "ppl": 300.5, "wps": 11740.7, "bleu": 3.25},
            100: {"loss": 7.5, "ppl": 117.5, "wps": 9000.0, "bleu": 4.5},
        },
        "train": {110: {"loss": 9.5, "ppl": 500.0, "wps": 4500.0, "lr": 1e-3, "wall": 50.0}},
    }
