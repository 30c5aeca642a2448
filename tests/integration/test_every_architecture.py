"""The cases of fairseq's own tests that concern an architecture for translation, with ours.

A smoke pass over every named architecture, and a deep one over a size of each family. fairseq's commands run in this
process: each is a second, and not three. Its cases that are tested elsewhere: resuming and accumulation
(test_resume.py), averaging and learning (test_training.py), generator and layer drop (test_generation.py), options that
are refused (test_config.py), TorchScript and activation checkpointing (test_model.py).
"""

import itertools
import re

import pytest
import torch
from fairseq.checkpoint_utils import load_ema_from_checkpoint

from user_dir.families import FAMILIES, SIZES

from support import PROJECT, TWO_FAMILIES, hypotheses, slow_beyond, train

LAST = TWO_FAMILIES[-1]  # it computes most of its own: for cases that depend on the data, and not on the family
every_family = pytest.mark.parametrize("family", slow_beyond([LAST], FAMILIES))
SHORT = """--max-update 3 --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 64
    --num-workers 0""".split()
ARCHITECTURES = slow_beyond([("vaswani_transformer", "tiny"), (LAST, "big")], itertools.product(FAMILIES, SIZES))


def generate(call, data, checkpoint, *options, command="fairseq-generate"):
    """Score and text of the best translations, in order."""
    options = [*"--beam 3 --max-len-b 10 --required-batch-size-multiple 1 --num-workers 0".split(), *options]
    return hypotheses(call(command, data, "--user-dir", PROJECT / "user_dir", "--path", checkpoint, *options))


def assert_same(found, expected):
    assert [text for _, text in found] == [text for _, text in expected]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=1e-4)


def last_loss(printed):
    return re.findall(r"valid on 'valid' subset .*\| loss ([\d.]+)", printed)[-1]


@pytest.mark.parametrize("family, size", ARCHITECTURES)
def test_smoke(call, copies, tmp_path, family, size):
    """It has the options of its name, trains, and is the same to validate, generate and interactive."""
    printed = train(call, copies, family, tmp_path, "--arch", f"{family}_{size}", *SHORT)
    path = tmp_path / "checkpoint_last.pt"
    model = torch.load(path)["cfg"]["model"]
    assert (model.encoder_attention_heads, model.decoder_attention_heads) == SIZES[size][3:4] * 2
    assert FAMILIES[family].options_of(size).items() <= vars(model).items()
    places = ["--user-dir", PROJECT / "user_dir", "--path", path, "--num-workers", "0"]
    validated = call("fairseq-validate", copies, "--task", "translation", *places, "--max-tokens", "500")
    assert last_loss(validated) == last_loss(printed)
    generated = generate(call, copies, path)
    sources = ["--input", copies.parent / "test.src", "--buffer-size", "50", "--max-tokens", "500"]
    answered = generate(call, copies, path, *sources, command="fairseq-interactive")
    assert len(generated) == 50 and len({score for score, _ in generated}) > 5
    assert_same(answered, generated)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """folders(family): of a training that translates the validation set every two updates, and of one that does not."""
    made = {}

    def folders(call, data, family):
        if family not in made:
            made[family] = [tmp_path_factory.mktemp(family) / name for name in ("bleu", "plain")]
            bleu = ["--eval-bleu", "--eval-bleu-detok", "space", "--eval-bleu-print-samples", "--eval-bleu-remove-bpe"]
            bleu += ["--eval-bleu-args", '{"beam": 3, "max_len_b": 10}', "--validate-interval-updates", "2"]
            common = [*SHORT, "--max-update", "6", "--store-ema", "--ema-decay", "0.5", "--branch-warmup-updates", "6"]
            for folder, options in zip(made[family], (bleu, ["--disable-validation"])):
                printed = train(call, data, family, folder, *common, *options)
                assert len(re.findall(r"valid on .*\| bleu [\d.]+", printed)) == 3 * (options is bleu)
        return made[family]

    return folders


def same(states, **tolerance):
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], msg=name, **tolerance)


@every_family
def test_translations_while_training_change_nothing(call, copies, folders, family):
    """--eval-bleu."""
    states = [torch.load(folder / "checkpoint_last.pt")["model"] for folder in folders(call, copies, family)]
    same(states, atol=0, rtol=0)


@every_family
def test_finetune(call, copies, folders, tmp_path, family):
    """--finetune-from-model: its weights, and all else from the first update on."""
    before = folders(call, copies, family)[0] / "checkpoint_last.pt"
    options = ["--finetune-from-model", before, "--max-update", "1", "--lr", "1e-9", "--branch-warmup-updates", "10000"]
    train(call, copies, family, tmp_path, *SHORT, *options, "--disable-validation")
    states = [torch.load(path) for path in (before, tmp_path / "checkpoint_last.pt")]
    same([state["model"] for state in states], atol=1e-5, rtol=0)
    assert [state["optimizer_history"][-1]["num_updates"] for state in states] == [6, 1]


@every_family
def test_moving_average_and_ensemble(call, copies, folders, tmp_path, family):
    """fairseq's load_ema_from_checkpoint gives a model like any other; it and the last one translate together."""
    last, average = folders(call, copies, family)[0] / "checkpoint_last.pt", tmp_path / "average.pt"
    torch.save(load_ema_from_checkpoint(last), average)
    found = [generate(call, copies, path) for path in (average, f"{last}:{average}")]
    assert len(found[0]) == 50 and found[0] != found[1]
    assert_same(generate(call, copies, f"{last}:{average}", "--task", "checked_translation"), found[1])


def test_layers_are_refused_by_name(call, copies, folders):
    last = folders(call, copies, LAST)[0] / "checkpoint_last.pt"
    with pytest.raises(ValueError, match="--encoder-layers-to-keep 0 .*train with the number of layers"):
        generate(call, copies, last, "--model-overrides", "{'encoder_layers_to_keep': '0'}")


def preprocess(call, copies, folder, *options):
    """The validation and test set of `copies` as a small data-bin in `folder`, with the same dictionaries."""
    parts = {"train": "test", "valid": "valid", "test": "valid"}
    texts = [f"--{part}pref={copies.parent / name}" for part, name in parts.items()]
    dictionaries = ["--srcdict", copies / "dict.src.txt", "--joined-dictionary"]
    call("fairseq-preprocess", *texts, *dictionaries, "-s", "src", "-t", "tgt", "--destdir", folder, *options)
    return folder


def test_raw_data(call, copies, tmp_path):
    """--dataset-impl raw: text instead of binary data, and the same training and translations."""
    found = []
    for kind in ("mmap", "raw"):
        data = preprocess(call, copies, tmp_path / kind, "--dataset-impl", kind)
        folder = tmp_path / f"{kind} run"
        train(call, data, LAST, folder, *SHORT, "--dataset-impl", kind, "--disable-validation")
        found.append(generate(call, data, folder / "checkpoint_last.pt", "--dataset-impl", kind))
    assert_same(*found)


def test_longer_than_the_model_takes(call, copies, tmp_path):
    """--max-target-positions: refused with what to do, and done."""
    options = [*SHORT, "--max-target-positions", "5", "--max-source-positions", "5"]
    skip = "--skip-invalid-size-inputs-valid-test"
    with pytest.raises(Exception, match=f"--max-source-positions 5: .*: add {skip}"):
        train(call, copies, LAST, tmp_path, *options)
    train(call, copies, LAST, tmp_path, *options, skip)
    with pytest.raises(Exception, match=skip):
        generate(call, copies, tmp_path / "checkpoint_last.pt")
    short = [line for line in (copies.parent / "test.src").read_text().splitlines() if len(line.split()) < 5]
    assert 0 < len(generate(call, copies, tmp_path / "checkpoint_last.pt", skip)) == len(short) < 50


def test_multilingual_data(call, copies, tmp_path):
    """--task translation_multi_simple_epoch with tokens for the languages, in both directions."""
    words = "--task translation_multi_simple_epoch --encoder-langtok src --decoder-langtok --langs src,tgt".split()
    directions = ["--lang-pairs", "src-tgt,tgt-src"]
    sampling = "--sampling-method temperature --sampling-temperature 1.5 --virtual-epoch-size 1000".split()
    train(call, copies, LAST, tmp_path, *SHORT, *words, *directions, *sampling)
    path = tmp_path / "checkpoint_last.pt"
    found = [
        generate(call, copies, path, *words, "--lang-pairs", f"{source}-{target}", "-s", source, "-t", target)
        for source, target in (("src", "tgt"), ("tgt", "src"))
    ]
    assert len(found[0]) == len(found[1]) == 50 and found[0] != found[1]


def test_alignments_are_learned(call, copies, tmp_path):
    """--criterion label_smoothed_cross_entropy_with_alignment: as fairseq's own Transformer, which has its loss."""
    for part in ("test", "valid"):
        lines = (copies.parent / f"{part}.src").read_text().splitlines()
        pairs = (" ".join(f"{i}-{i}" for i in range(len(line.split()))) for line in lines)
        (copies.parent / f"{part}.align").write_text("".join(f"{line}\n" for line in pairs))
    data = preprocess(call, copies, tmp_path / "aligned", "--align-suffix", "align")
    options = "--criterion label_smoothed_cross_entropy_with_alignment --load-alignments --dropout 0".split()
    options += "--encoder-attention-heads 4 --decoder-attention-heads 4".split()
    losses = []
    for arch in ("transformer", "vaswani_transformer_tiny"):
        printed = train(call, data, "vaswani_transformer", tmp_path / arch, *SHORT, *options, "--arch", arch)
        losses.append(re.findall(r"alignment_loss[= ]([\d.]+)", printed))
    assert losses[0] == losses[1] != []
