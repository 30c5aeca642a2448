"""Text through Translator, fairseq's hub interface and fairseq-interactive.

The oracle is what data-prep wrote and fairseq-generate translated.
"""

import argparse
import itertools
import random
import re

import pytest
from fairseq.data import Dictionary
from sacremoses import MosesDetokenizer, MosesPunctNormalizer

from user_dir.serving.translator import Translator
from user_dir.task import CheckedTranslationConfig, CheckedTranslationTask
from user_dir.transformer.architectures import FAMILIES
from user_dir.transformer.model import TransformerModel

from support import OLD, PROJECT, SMALL, TWO_FAMILIES, build_model, hypotheses, run, save_checkpoint, slow_beyond, train

SOURCE = (
    ["L'homme", "Peut-être", "«\u00a0Marie\u00a0»", "Le chat-huant", "Qu'est-ce que", "“Tom”,"],
    ["est là", "l’a vu", "n'aime pas", "pèse 3,5 kg", "dit-il", "vaut 12\u00a0%"],
    ["aujourd'hui !", "à A&B...", "[sic] ?", "en 2\u202f000 – non", "etc.", "chez M. O'Neil."],
)
TARGET = (
    ["The man", "Maybe", '"Mary"', "The owl", "What", "“Tom,”"],
    ["isn't there", "saw it", "doesn't like", "weighs 3.5 kg", "says", "is worth 12%"],
    ["today!", "at A&B...", "[sic]?", "in 2,000 – no", "etc.", "at Mr. O'Neil's well-known place."],
)
FORMS = {"joint": [], "lower-cased": ["--lowercase"], "separate": ["--separate-bpe", "--lowercase"]}
FORMS |= {"as published": [], "lower-cased as published": ["--lowercase"]}
REGISTRY = """
[thing]
title = "A thing"
licence = "none"
attribution = "nobody"
homepage = "nowhere"
valid-every = 9
[thing.files]
"train.fr" = { url = "http://localhost/train.fr" }
"train.en" = { url = "http://localhost/train.en" }
"test.fr" = { url = "http://localhost/test.fr" }
"test.en" = { url = "http://localhost/test.en" }
[thing.pairs.en-fr.texts]
train = { fr = ["train.fr"], en = ["train.en"] }
test = { fr = ["test.fr"], en = ["test.en"] }
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """corpus(form): the folder that data-prep made of 216 sentences in this form, once."""
    texts, made = tmp_path_factory.mktemp("texts"), {}
    pairs = [*zip(itertools.product(*SOURCE), itertools.product(*TARGET))]
    random.Random(1).shuffle(pairs)
    for side, language in enumerate(("fr", "en")):
        lines = [" ".join(pair[side]) + "\n" for pair in pairs]
        for part, those in (("train", lines[20:]), ("test", lines[:20])):
            (texts / f"{part}.{language}").write_text("".join(those))
    (texts / "registry.toml").write_text(REGISTRY)

    def corpus(form):
        if form not in made:
            made[form] = tmp_path_factory.mktemp("corpora") / form.replace(" ", "-")
            own = ["--train", texts / "train.fr", texts / "train.en", "--test", texts / "test.fr", texts / "test.en"]
            source = ["thing", "--registry", texts / "registry.toml", "--mirror", texts] if "published" in form else own
            options = ["--source-lang", "fr", "--target-lang", "en", "--output", made[form]]
            options += ["--bpe-operations", "150", "--workers", "1"]
            run("python", PROJECT / "data-prep/prepare.py", *source, *options, *FORMS[form])
        return made[form]

    return corpus


def lines_of(path):
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def untrained(folder, languages, path):
    """A checkpoint that goes with the corpus."""
    options = argparse.Namespace(arch="vaswani_transformer_base", _name="vaswani_transformer_base", **SMALL)
    source, target = (Dictionary.load(str(folder / f"data-bin/dict.{language}.txt")) for language in languages)
    model = build_model(CheckedTranslationTask(CheckedTranslationConfig(), source, target), options.arch)
    save_checkpoint(path, model, options, folder / "data-bin", languages)
    return path


@pytest.mark.parametrize("form", slow_beyond(["joint", "separate", "as published"], FORMS))
def test_text_is_prepared_as_data_prep_prepared_it(corpus, tmp_path, form):
    """raw/ through `encode` is bpe/, of the source and, in the other direction, of the target; `decode` undoes it."""
    folder = corpus(form)
    for languages in (("fr", "en"), ("en", "fr")):
        translator = Translator(untrained(folder, languages, tmp_path / "checkpoint.pt"))
        for part in ("valid", "test"):
            raw, expected = (lines_of(folder / stage / f"{part}.{languages[0]}") for stage in ("raw", "bpe"))
            assert [translator.encode(line) for line in raw] == expected
            texts, subwords = (lines_of(folder / stage / f"{part}.{languages[1]}") for stage in ("tok", "bpe"))
            detokenise = MosesDetokenizer(languages[1]).detokenize
            assert [*map(translator.decode, subwords)] == [detokenise(text.split()) for text in texts]
    tokens = " ".join(lines_of(folder / "tok/test.fr"))
    assert re.search("chat-huant", tokens, re.IGNORECASE) and "@-@" not in tokens
    assert "&apos;" in tokens and "&amp;" in tokens
    assert ("“" in tokens) == ("published" in form)
    assert ("Tom" in tokens) == ("lower" not in form and form != "separate")


OPTIONS = "--beam 4 --lenpen 1 --max-len-a 1 --max-len-b 50 --max-tokens 6000".split()
TEXT = ["--remove-bpe", "--tokenizer", "moses"]


@pytest.fixture(scope="module", params=slow_beyond(TWO_FAMILIES[:1], FAMILIES))
def trained(request, command, corpus, tmp_path_factory):
    """Checkpoint of a few updates, its corpus, and fairseq-generate's translations of the test set."""
    folder, runs = corpus("joint"), tmp_path_factory.mktemp("run")
    train(command, folder / "data-bin", request.param, runs, "--max-update", "60", "--disable-validation")
    path = runs / "checkpoint_last.pt"
    user_dir = ["--user-dir", PROJECT / "user_dir", "--path", path, "--required-batch-size-multiple", "1"]
    done = command("fairseq-generate", folder / "data-bin", "-s", "fr", "-t", "en", *user_dir, *OPTIONS, *TEXT)
    translations = [text for _, text in hypotheses(done.stdout, "D")]
    assert len(translations) == 20 and len({*translations}) > 3
    return path, folder, translations


def test_translations_are_those_of_fairseq_generate(trained):
    path, folder, expected = trained
    assert Translator(path).translate(lines_of(folder / "raw/test.fr")) == expected


def normalised(path):
    """fairseq's tokeniser leaves punctuation to the reader: it does not normalise it."""
    normaliser = MosesPunctNormalizer("fr")
    return [normaliser.normalize(line + "\n") for line in lines_of(path)]


def test_hub(trained):
    path, folder, expected = trained
    text = {"source_lang": "fr", "target_lang": "en", "tokenizer": "moses", "moses_no_dash_splits": True}
    text |= {"bpe": "subword_nmt", "bpe_codes": str(folder / "bpe/codes")}
    hub = TransformerModel.from_pretrained(str(path.parent), path.name, str(folder / "data-bin"), **text)
    assert hub.translate(normalised(folder / "raw/test.fr"), beam=4, lenpen=1, max_len_a=1, max_len_b=50) == expected


@pytest.mark.parametrize(
    "program",
    [
        "from user_dir.variants import TransformerModel\n"
        f"TransformerModel.from_pretrained({str(OLD)!r}, 'relative_transformer.pt', {str(OLD / 'data-bin')!r})",
        "from user_dir.translator import Translator",
    ],
    ids=["hub", "Translator"],
)
def test_a_program_that_has_not_imported_fairseq(program):
    """All that the model needs is registered, nothing is printed, and the program's log stays its own."""
    kept = "assert logging.root.level == logging.WARNING and not logging.root.handlers"
    done = run("python", "-c", f"import logging\n{program}\n{kept}", cwd=PROJECT)
    assert "from_pretrained" in program or done.stdout == done.stderr == ""  # fairseq prints what it loads


@pytest.mark.parametrize("trained", [next(iter(FAMILIES))], indirect=True)
def test_commands(trained, command, tmp_path):
    """tools.translate, and fairseq-interactive as their page has it: one family, since what they add to it is text."""
    path, folder, expected = trained
    files = ["--input", folder / "raw/test.fr", "--output", tmp_path / "translations"]
    command("python", "-m", "user_dir.tools.translate", path, *files)
    assert lines_of(tmp_path / "translations") == expected
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in normalised(folder / "raw/test.fr")))
    options = ["-s", "fr", "-t", "en", "--user-dir", PROJECT / "user_dir", "--path", path]
    options += ["--input", tmp_path / "text", "--buffer-size", "100"]
    options += ["--tokenizer", "moses", "--moses-no-dash-splits"]
    options += ["--bpe", "subword_nmt", "--bpe-codes", folder / "bpe/codes"]
    done = command("fairseq-interactive", folder / "data-bin", *options, *OPTIONS)
    assert [text for _, text in hypotheses(done.stdout, "D")] == expected
