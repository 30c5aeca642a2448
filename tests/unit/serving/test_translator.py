"""Translator: finds what belongs to a checkpoint, keeps lines in order, scores as defined."""

import argparse
import math
import multiprocessing
import os
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig

from user_dir.errors import InputError
from user_dir.serving.translator import Translator

from support import change

TEXTS = ["w1 w2", "", "w3 w4 w5 w6 w7", " \u2028 ", "w8", "漢字 unheard \x00", "w9 w10 w11"]


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
    assert translator.translate([]) == [] and translator.translate(TEXTS, max_tokens=2) == together
    counts = []
    assert translator.translate(TEXTS, batch_size=2, advance=counts.append) == together and counts == [2, 2, 1]


def test_scores(files):
    """Σ log2 p(word | before) of the model that reads the source and writes the hypothesis, by the length penalty."""
    path, data = files()
    words = data / "dict.tgt.txt"
    words.write_text(words.read_text().replace("w", "v"))  # the languages have dictionaries of their own
    translator = Translator(path)
    (model,), dictionary = translator.models, translator.task.target_dictionary
    source = translator.binarise(translator.encode("w3 w4 w5"))
    assert translator.generator().is_plain_beam_search()
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
    change(other, task__source_lang=None, task__target_lang=None)  # of a training for which fairseq inferred them
    assert len(Translator(path, other).models) == 2


def test_models_of_other_dictionaries_are_no_ensemble(files):
    """Nor a single one; the task in these files is fairseq's, which does not compare them."""
    path, _ = files("transformer")
    other, _ = files(name="other.pt")
    torch.save(torch.load(other) | {"task_state": {"dictionaries": ["of", "others"]}}, other)
    for paths in ((path, other), (other, path), (other,)):
        with pytest.raises(InputError, match="the model was trained with other dictionaries than those of"):
            Translator(*paths)


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
    change(other, model__max_source_positions=41)
    assert Translator(path, other).longest == 40, "what both models take"


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
    (tmp_path / "link").symlink_to(data)
    change(path, task__data=f"{tmp_path / 'link'}{os.pathsep}nowhere")  # the first of several folders
    assert Translator(path, other).data == tmp_path / "link"
    (tmp_path / "another").mkdir()
    change(path, task__data=str(tmp_path / "another"))
    with pytest.raises(InputError, match="checkpoint.pt was trained on .*another and .*other.pt on .*data-bin: name"):
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
        Translator(path, stock, autocast="bf16")


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

    def limits(rows, _, limit, read):
        return [read([{"tokens": row, "score": torch.tensor(1.0 * limit)}]) for row in rows]

    monkeypatch.setattr(several, "beam_search", limits)
    assert several.search(["w1"] * 30)[0][0].score == pytest.approx(2000 / math.log(2)), "of 6,000 subwords for all"
    meta = Translator(path, device="meta", processes=4)
    assert meta.processes == 1, "as on a GPU, which a fork cannot use"
    (batch,) = meta.batches(meta.task.build_dataset_for_inference([torch.tensor([5, 2])], [2]))
    assert batch["net_input"]["src_tokens"].is_meta
    monkeypatch.setattr("user_dir.serving.translator.sys", argparse.Namespace(platform="darwin"))
    assert Translator(path, processes=4).processes == 1


def test_texts_alone_are_kept(files, monkeypatch):
    """Of all but the last batch: the hypotheses of a million sentences would take 11 GB."""
    translator, tokens = Translator(files()[0]), []
    search = translator.task.inference_step

    def noted(*given):
        assert not any(one() is not None for batch in tokens[:-1] for one in batch)
        found = search(*given)
        tokens.append([weakref.ref(hypothesis["tokens"]) for hypotheses in found for hypothesis in hypotheses])
        return found

    monkeypatch.setattr(translator.task, "inference_step", noted)
    assert len(translator.translate(TEXTS, batch_size=1)) == len(TEXTS) and len(tokens) == 5


def test_a_process_that_may_not_fork_translates_alone(files, monkeypatch):
    """As a worker of multiprocessing.Pool, which is a daemon."""
    translator = Translator(files()[0], processes=2)
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert len(translator.translate(["w1 w2"] * 100)) == 100


@pytest.mark.parametrize("said", ["CUDA out of memory. Tried …", "DefaultCPUAllocator: can't allocate memory: you …"])
def test_a_batch_that_does_not_fit(files, monkeypatch, said):
    translator = Translator(files()[0])

    def full(*_):
        raise RuntimeError(said)

    monkeypatch.setattr(translator.task, "inference_step", full)
    with pytest.raises(InputError, match="does not fit into memory: lower --max-tokens"):
        translator.translate(["w1"])
    said = "index out of range"  # another fault is not hidden
    with pytest.raises(RuntimeError, match=f"^{said}$"):
        translator.translate(["w1"])


def test_a_model_that_does_not_fit(files, monkeypatch):
    """Into the memory that a training has left of a GPU."""
    path, _ = files()
    full = torch.OutOfMemoryError("CUDA out of memory. Tried …")
    monkeypatch.setattr(torch.nn.Module, "to", mock.Mock(side_effect=full))
    with pytest.raises(InputError, match="the model does not fit into memory: name another device"):
        Translator(path)


def test_a_model_that_is_shared_without_the_binarised_text(files):
    """From which fairseq takes languages that the training was not told."""
    path, _ = files()
    change(path, task__source_lang=None, task__target_lang=None)
    (alone,) = Translator(path, pretokenised=True).translate(["w1 w2"])
    assert alone == Translator(path).search(["w1 w2"])[0][0].text


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
