"""Translator: finds what belongs to a checkpoint, keeps lines in order, scores as defined; bad input is one line.

integration/test_translate.py compares its subwords with those of data-prep.
"""

import argparse
import json
import math
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig

from user_dir.errors import InputError
from user_dir.preparation import PreparedText, preparation_of, tidied
from user_dir.serving.text_translator import Hypothesis, TextTranslator
from user_dir.serving.translator import Translator

from support import change, write_preparation

TEXTS = ["w1 w2", "", "w3 w4 w5 w6 w7", " \u2028 ", "w8", "漢字 unheard \x00", "w9 w10 w11"]


@pytest.fixture
def files(saved):
    """files(arch, **preparation): checkpoint and data-bin, with what data-prep leaves beside it.

    Weights are random, and large enough that no two words are alike.
    """

    def files(arch="vaswani_transformer_base", name="checkpoint.pt", **preparation):
        model, path, data = saved(arch, name=name)
        state, random = torch.load(path), torch.Generator().manual_seed(len(name))
        for weight in state["model"].values():
            if weight.dim() == 2:
                weight.normal_(std=0.7, generator=random)
        torch.save(state, path)
        write_preparation(data, **preparation)
        change(path, task__data=str(data))
        return path, data

    return files


def of_any_batch(translator):
    """The same with translations of at most 20 subwords: fairseq lets the longest source of a batch choose."""
    search = GenerationConfig(beam=4, max_len_b=20)
    translator.generator = lambda: translator.task.build_generator(translator.models, search)
    return translator


def test_lines_and_results_go_together(files):
    """Each text gives what it gives alone; a text without words gives nothing."""
    translator = of_any_batch(Translator(files()[0]))
    together = translator.translate(TEXTS, max_tokens=12)
    assert together == [translator.translate([text])[0] for text in TEXTS]
    assert together[1] == together[3] == "" and all(together[number] for number in (0, 2, 4, 5, 6))
    assert len({*together}) >= 4
    with pytest.raises(TypeError, match=r"translate\(\[text\]\)"):
        translator.translate("w1 w2")
    assert translator.translate([]) == [] and translator.translate(TEXTS, batch_size=2) == together


def test_scores(files):
    """Σ log2 p(word | before) of the model that reads the source and writes the hypothesis, by the length penalty."""
    path, data = files()
    words = data / "dict.tgt.txt"
    words.write_text(words.read_text().replace("w", "v"))  # the languages have dictionaries of their own
    translator = Translator(path)
    (model,), dictionary = translator.models, translator.task.target_dictionary
    source = translator.binarise(translator.encode("w3 w4 w5"))
    penalties = {"fairseq": lambda length: length, "vaswani": lambda length: (5 + length) / 6}
    for lenpen, form in ((0.6, "fairseq"), (1.5, "fairseq"), (1.5, "vaswani")):
        search = {"beam": 4, "lenpen": lenpen, "lenpen_form": form}
        (found,) = translator.search([translator.encode("w3 w4 w5")], nbest=3, **search)
        (raw,) = translator.beam_search([source], **search)
        assert len(found) == 3 and [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        for (text, score), hypothesis in zip(found, raw):
            target = hypothesis["tokens"]
            assert text == dictionary.string(target)
            with torch.no_grad():
                log_p = model(source[None], torch.tensor([len(source)]), target.roll(1)[None])[0][0].log_softmax(-1)
            total = log_p.gather(1, target[:, None]).sum().item()
            assert score == pytest.approx(total / math.log(2) / penalties[form](len(target)) ** lenpen, rel=1e-4)


def test_models_of_different_directions_are_no_ensemble(files):
    path, _ = files()
    other, _ = files(name="other.pt")
    change(path, task__source_lang="src", task__target_lang="tgt")
    change(other, task__source_lang="tgt", task__target_lang="src")
    with pytest.raises(InputError, match="checkpoint.pt, .*other.pt translate in different directions"):
        Translator(path, other)


def test_ensemble(files):
    """The mean of the probabilities: of a model and itself the same model, of two others something else."""
    path, _ = files()
    other, _ = files(name="other.pt")
    texts = ["w3 w4 w5"]
    alone = Translator(path)
    twice, mixed = Translator(path, path), Translator(path, other)
    rows = [*map(alone.encode, texts)]
    for (text, score), (same, near) in zip(alone.search(rows)[0], twice.search(rows)[0]):
        assert text == same and score == pytest.approx(near, rel=1e-4)
    source = alone.binarise(rows[0])
    target = mixed.beam_search([source])[0][0]["tokens"]
    with torch.no_grad():
        inputs = source[None], torch.tensor([len(source)]), target.roll(1)[None]
        p = [model(*inputs)[0][0].softmax(-1) for model in mixed.models]
    total = (sum(p) / 2).log().gather(1, target[:, None]).sum().item()
    assert mixed.search(rows)[0][0].score == pytest.approx(total / math.log(2) / len(target), rel=1e-4)
    assert mixed.search(rows)[0][0].text != alone.search(rows)[0][0].text


def test_a_text_too_long_is_cut_where_it_hurts_least(files):
    translator = Translator(files()[0])
    assert translator.longest == 1023
    translator.longest = 5
    assert translator.pieces("a b . c d e f g") == ["a b .", "c d e f g"]  # after a sentence
    assert translator.pieces("a b c d@@ e@@ f g") == ["a b c", "d@@ e@@ f g"]  # after a word
    assert translator.pieces("a@@ b@@ c@@ d@@ e@@ f@@ g") == ["a@@ b@@ c@@ d@@ e@@", "f@@ g"]  # anywhere
    assert translator.pieces("a b c d e") == ["a b c d e"] and translator.pieces("") == []
    translator.longest = 4  # w1 and w2 are subwords, w3 is two
    (found,) = translator.search([translator.encode("w1 w2 . w3 w1")], nbest=2)
    parts = [translator.search([row], nbest=2)[0] for row in ("w1 w2 .", "w@@ 3 w1")]
    assert [text for text, _ in found] == [f"{first.text} {second.text}" for first, second in zip(*parts)]
    assert found[0].score == pytest.approx((parts[0][0].score + parts[1][0].score) / 2, rel=1e-4)


def test_sentences_are_translated_one_by_one(files):
    """Translations of a text and its n best; as one if that is asked for."""
    pytest.importorskip("sentencex")
    path, _ = files()
    translator = Translator(path)
    sentences, text = ["w1 w2.", "W3 w4!", "w5"], " w1 w2.  W3 w4! w5"
    one = {"batch_size": 1}  # the length of the longest source in a batch limits that of its translations
    parts, (together,) = translator.translate(sentences, **one), translator.translate([text], split_sentences=False)
    assert translator.translate(["", text, "w1"], **one) == ["", " ".join(parts), *translator.translate(["w1"])]
    assert together != " ".join(parts) and together == translator.search([translator.encode(text)])[0][0].text
    (found,) = translator.search(translator.rows([text]), nbest=2, **one)
    alone = translator.search(translator.rows(sentences), nbest=2, **one)
    assert [text for text, _ in found] == [" ".join(part.text for part in parts) for parts in zip(*alone)]
    assert found[1].score == pytest.approx(sum(row[1].score for row in alone) / 3, rel=1e-4)
    split = Translator(path, pretokenised=True)
    assert split.rows([text]) == [" ".join(text.split())]
    with pytest.raises(InputError, match="do not split it"):
        split.rows([text], split_sentences=True)


@pytest.mark.parametrize(
    "language, sentences",
    [
        ("fr", ["M. Dupont et J. Bach sont là.", "Oui ?", "Non !", "Il coûte 3.50 euros."]),
        ("en", ["It is No. 5.", "You and I agree.", "Why?"]),
        ("pt_BR", ["Bom dia.", "Tudo bem?"]),
        ("ja", ["私は学生です。", "元気ですか？"]),
        ("hi", ["राम २.५ किमी गया।", "वह १० है।", "२ और ३?"]),
        ("xx", ["It rains.", "A last one of J. S."]),
    ],
)
def test_where_sentences_end(tmp_path, language, sentences):
    """Each in the form of its language, and of English in unknown ones; never after an abbreviation."""
    pytest.importorskip("sentencex")
    write_preparation(tmp_path / "data-bin", (language, "en"))
    text = PreparedText(preparation_of(tmp_path / "data-bin"), language, "en")
    between = "" if language == "ja" else "  "
    assert [sentence.strip() for sentence in text.sentences(between.join(sentences))] == sentences
    assert text.sentences(" \n ") == []


@pytest.mark.parametrize(
    "language, text",
    [
        ("fr", "Elle dit : « L'eau, c'est 100 % bleu ! »"),
        ("hi", "क्\u200dया वह आता है? वह आता है।"),
        ("ur", "وہ آتا ہے۔ کیا؟"),
        ("en", "At 7:05 or 10:45:30? In 2020: 25 people, 1.25: 30, 1: 100."),
        ("fa", "می\u200cروم، تو؛"),
        ("am", "ሰላም፣ ነው።"),
        ("hy", "Բարև։"),
        ("zh", "你好，世界！《书》（是）。好"),
        ("ja", "これは、本です。「はい」"),
    ],
)
def test_text_comes_back_as_it_was(tmp_path, language, text):
    """But for quotation marks, which are normalised."""
    write_preparation(tmp_path / "data-bin", (language, language))
    prepared = PreparedText(preparation_of(tmp_path / "data-bin"), language, language)
    assert prepared.decode(prepared.encode(text)) == text.replace("« ", '"').replace(" »", '"')


@pytest.mark.parametrize("prepared, expected", [(True, "这是书。这是书。"), (False, "这是书。 这是书。")])
def test_sentences_are_joined_as_their_script_does(monkeypatch, prepared, expected):
    translator = TextTranslator()
    translator.kept, translator.longest = {}, 9
    translator.text = argparse.Namespace(natural=prepared)
    monkeypatch.setattr(translator, "best", lambda rows, nbest: [[Hypothesis("这是书。", 0.0)] for _ in rows])
    assert translator.search(["a\nb"])[0][0].text == expected


@pytest.mark.parametrize("texts, expected", [(["A.", "", "B."], "A. B."), (["", "B."], "B."), (["A.", ""], "A.")])
def test_a_sentence_without_a_translation_leaves_no_space(monkeypatch, texts, expected):
    translator = TextTranslator()
    translator.kept, translator.longest, translator.text = {}, 9, argparse.Namespace(natural=True)
    monkeypatch.setattr(translator, "best", lambda rows, nbest: [[Hypothesis(text, -3.0)] for text in texts])
    assert translator.search(["\n".join("abc"[: len(texts)])])[0][0] == (expected, -3.0)


def test_text_is_composed_as_by_data_prep():
    assert tidied("re\u0301sume\u0301 \u00a0 e") == "r\u00e9sum\u00e9 e"


def test_either_direction(files):
    """A data-bin of src to tgt trained on from tgt to src: the other side's codes."""
    path, data = files(separate=True)
    (data.parent / "bpe/codes.tgt").write_text("#version: 0.2\nw 3</w>\n")
    assert Translator(path).encode("w1 w3") == "w1 w@@ 3"
    change(path, task__source_lang="tgt", task__target_lang="src")
    assert Translator(path).encode("w1 w3") == "w@@ 1 w3"
    change(path, task__source_lang=None, task__target_lang=None)  # left to fairseq
    assert Translator(path).encode("w1 w3") == "w1 w@@ 3"


def test_text_as_it_stands(files):
    """Data that data-prep did not prepare may be decomposed."""
    path, data = files()
    (data.parent / "manifest.json").unlink()
    translator = Translator(path, pretokenised=True)
    assert translator.encode(" w1  e\u0301 don&apos;t\u00a0w@@ 2 ") == "w1 e\u0301 don&apos;t w@@ 2"
    assert translator.decode("w1 &apos;t w@@ 2") == "w1 &apos;t w2"


def test_moved_data(files, tmp_path):
    path, data = files()
    texts = ["w1 w2"]
    expected = Translator(path).translate(texts)
    change(path, task__data="somewhere/else")
    with pytest.raises(InputError, match=r"was trained on somewhere/else.*: name"):
        Translator(path)
    assert Translator(path, data=data).translate(texts) == expected
    assert Translator(str(path), data=str(data)).translate(texts) == expected
    other, _ = files(name="other.pt")
    (tmp_path / "another").mkdir()
    change(path, task__data=str(tmp_path / "another"))
    with pytest.raises(InputError, match="another.* and .*other.pt on .*data-bin: name"):
        Translator(path, other)
    change(path, task__data=None)
    with pytest.raises(InputError, match=r"training data: name"):
        Translator(path)


def test_precision(files):
    """That of the training, unless another one is asked for: bfloat16 must not be needed to use what it trained."""
    path, _ = files()
    change(path, model__autocast="bf16")
    seen = []
    for autocast in (None, "off", "bf16"):
        translator = Translator(path, autocast=autocast)
        layer = translator.models[0].encoder.layers[0].fc1
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
        translator.translate(["w1"])
    assert seen == [torch.bfloat16, torch.float32, torch.bfloat16]
    stock, _ = files("transformer", name="stock.pt")
    with pytest.raises(InputError, match="autocast bf16 .*stock.pt.*: omit it"):
        Translator(stock, autocast="bf16")


def test_data_on_another_disk(files, tmp_path):
    """data-bin as a link; then the whole folder of the preparation as one."""
    path, data = files()
    expected = Translator(path).translate(["w1 w3"])
    (tmp_path / "disk").mkdir()
    data.rename(tmp_path / "disk/moved")
    data.symlink_to(tmp_path / "disk/moved")
    assert Translator(path).translate(["w1 w3"]) == expected
    (tmp_path / "link").symlink_to(data)  # it stands beside a manifest, and the folder that it leads to does not
    assert Translator(path, data=tmp_path / "link").translate(["w1 w3"]) == expected
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link").symlink_to(tmp_path)
    assert Translator(path, data=tmp_path / "elsewhere/link/data-bin").translate(["w1 w3"]) == expected


@pytest.mark.parametrize("kind", [argparse.Namespace, dict])
def test_embeddings_of_a_file_that_is_gone(files, tmp_path, kind):
    """--encoder-embed-path: all weights are in the checkpoint. A pipe would be waited for."""
    path, _ = files()
    expected = Translator(path).translate(["w1 w3"])
    os.mkfifo(tmp_path / "pipe")
    for file in ("nowhere.txt", "pipe"):
        change(path, model__encoder_embed_path=str(tmp_path / file), model__decoder_embed_path=str(tmp_path / file))
        state = torch.load(path)
        state["cfg"]["model"] = kind(**vars(state["cfg"]["model"]))
        torch.save(state, tmp_path / "other.pt")
        assert Translator(tmp_path / "other.pt").translate(["w1 w3"]) == expected


@pytest.mark.parametrize(
    "search, words",
    [
        ({"beam": 0}, "beam 0: give a whole number"),
        ({"beam": 0, "lenpen": 11}, "beam 0: give .*; lenpen 11: give"),
        ({"beam": -1}, "beam -1: "),
        ({"beam": "4"}, "beam '4': "),
        ({"beam": 2.5}, "beam 2.5: "),
        ({"nbest": 0}, "nbest 0: "),
        ({"nbest": 5}, "nbest 5 .*beam 4: "),
        ({"nbest": 9, "beam": 2}, "nbest 9 .*beam 2: "),
        ({"lenpen": math.nan}, "lenpen nan: give a number"),
        ({"lenpen": 1e9}, "lenpen 1000000000.0: give a number"),
        ({"lenpen": "1"}, "lenpen '1': "),
        ({"lenpen_form": "googles"}, "lenpen_form 'googles': give one of fairseq, vaswani"),
        ({"batch_size": 0}, "batch_size 0: "),
        ({"max_tokens": -5}, "max_tokens -5: "),
    ],
    ids=str,
)
def test_numbers_that_nobody_can_search_with(files, search, words):
    translator = Translator(files()[0])
    with pytest.raises(InputError, match=f"^{words}"):
        translator.search(["w1"], **search)
    if "nbest" not in search:
        with pytest.raises(InputError, match=f"^{words}"):
            translator.beam_search([translator.binarise("w1")], **search)


def test_several_processes(files, monkeypatch):
    """They find what one finds, in the order of the texts, also after torch has started threads here."""
    path, _ = files("relative_transformer_base")
    texts, counts = [f"w{n % 7 + 1} w{n % 11 + 2} " * (n % 5 + 1) for n in range(30)], []
    one, several = of_any_batch(Translator(path)), of_any_batch(Translator(path, processes=4))
    monkeypatch.setattr("user_dir.serving.translator.ROWS", 10)
    assert several.translate(TEXTS) == one.translate(TEXTS), "too few to be shared"
    assert several.translate(texts, advance=counts.append) == one.translate(texts)
    assert sum(counts) == len(texts) and len(counts) == 12, "three processes of ten rows, four shares each"


def test_threads_share_one(files):
    translator = of_any_batch(Translator(files()[0]))
    texts = [[f"w{number} w3"] for number in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(translator.translate, texts)] == [*map(translator.translate, texts)]


def test_pickled(files):
    """A worker that is spawned opens it again, with what it was opened with."""
    path, data = files()
    translator = Translator(path, path, data=data, pretokenised=True, autocast="bf16", processes=2)
    other = pickle.loads(pickle.dumps(translator))
    assert len(other.models) == 2 and other.data == data and other.processes == translator.processes
    assert {model.decoder.cfg.autocast for model in other.models} == {"bf16"}
    assert other.translate(TEXTS) == translator.translate(TEXTS)


def spoilt(**values):
    return lambda folder: change(folder / "checkpoint.pt", **values)


def without_groups(*kept):
    def keep(folder):
        state = torch.load(folder / "checkpoint.pt")
        cfg = {group: state["cfg"][group] for group in kept} if kept else "nonsense"
        torch.save({**state, "cfg": cfg}, folder / "checkpoint.pt")

    return keep


def change_state(folder, **values):
    torch.save(torch.load(folder / "checkpoint.pt") | values, folder / "checkpoint.pt")


def of_other_words(folder):
    change(folder / "checkpoint.pt", task___name="checked_translation")
    change_state(folder, task_state={"dictionaries": ["of", "others"]})


def written(name, text):
    return lambda folder: (folder / name).write_bytes(text.encode("latin-1"))


def removed(name):
    return lambda folder: (folder / name).unlink()


def manifest(**values):
    def change(folder):
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def prepared(**preparation):
    return lambda folder: write_preparation(folder / "data-bin", **preparation)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (written("checkpoint.pt", "hello"), "checkpoint.pt is not a readable fairseq checkpoint"),
        (removed("manifest.json"), "no manifest.json .*data-bin.*: .*--pretokenised"),
        (written("manifest.json", "{"), "manifest.json .*: run data-prep/prepare.py again"),
        (written("manifest.json", "[" * 100_000), "manifest.json .*: run"),
        (manifest(stages={}), "manifest.json .*'tok' is missing.*: run"),
        (manifest(**{"source language": "../../etc"}), "manifest.json .*: run"),
        (prepared(lowercase="yes"), "manifest.json .*invalid value.*: run"),
        (prepared(languages=("fr", "en")), "src to tgt.*data-bin has fr and en: name"),
        (removed("bpe/codes"), "no subword codes .*bpe/codes: keep"),
        (prepared(codes=""), "bpe/codes .*: run"),
        (prepared(codes="#version: 0.2\na b c\n"), "bpe/codes .*invalid line 2.*: run"),
        (prepared(codes="#version: 9\na b\n"), "bpe/codes .*version 9.*: run"),
        (written("bpe/codes", "#version: 0.2\n\xff \xfe\n"), "bpe/codes .*decode.*: run"),
        (written("bpe/vocabulary", "\xff 1\n"), "bpe/vocabulary .*decode.*: run"),
        (written("data-bin/dict.src.txt", "nonsense\n"), "gives no model with .*Incorrect dictionary format"),
        (written("data-bin/dict.src.txt", "a 1\n"), "gives no model with the dictionaries of .*size mismatch"),
        (
            of_other_words,
            "checkpoint.pt: .*trained with other dictionaries than those of .*data-bin: name the data",
        ),
        (
            lambda folder: change_state(folder, task_state=["other"]),
            "checkpoint.pt is not a readable fairseq checkpoint",
        ),
        (removed("data-bin/dict.src.txt"), "gives no model with the dictionaries of .*dict.src.txt"),
        (lambda folder: [file.unlink() for file in (folder / "data-bin").iterdir()], "no dictionaries .*: name"),
        (without_groups(), "checkpoint.pt is not a readable fairseq checkpoint .AttributeError"),
        (without_groups("model"), "checkpoint.pt .*training data: name the data-bin"),
        (without_groups("model", "task"), "checkpoint.pt .*generation options .*: name another"),
        *[(spoilt(task__max_source_positions=number), f"max_source_positions {number} ") for number in (0, 1, -3)],
        (spoilt(model__encoder_layers=1_000_000), "encoder_layers 1000000, .*: do not use it"),
        (spoilt(model__decoder_layers=1_000_000), "decoder_layers 1000000, "),
        (spoilt(model__encoder={"layers": 1_000_000}), "encoder .*1000000.*: do not use it"),
        (spoilt(model__encoder={"embed_path": "/dev/zero"}), "encoder .*/dev/zero.*: do not use it"),
        (spoilt(model__encoder_embed_dim=10**9), "encoder_embed_dim 1000000000, "),
        (spoilt(model__max_source_positions=10**9), "max_source_positions 1000000000, "),
    ],
)
def test_bad_input(files, spoil, words, capsys):
    path, _ = files()
    spoil(path.parent)
    with pytest.raises(InputError, match=re.compile(words, re.DOTALL)):
        Translator(path)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_training_that_diverged_is_one_line(files, number):
    path, _ = files()
    state = torch.load(path)
    for weight in state["model"].values():
        weight.fill_(number)
    torch.save(state, path)
    with pytest.raises(InputError, match="probabilities are not finite.*: use another"):
        Translator(path).translate(["w1 w2"])


def test_no_such_device(files):
    with pytest.raises(InputError, match="no device nowhere .*: .*such as cpu"):
        Translator(files()[0], device="nowhere")
