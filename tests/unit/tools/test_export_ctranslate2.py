"""python -m user_dir.tools.export_ctranslate2: CTranslate2 gives the translations and probabilities of the model."""

import argparse
import contextlib
import json
import os
import re
import shutil
import types
from dataclasses import dataclass

import pytest
import torch

from user_dir.config import VariantConfig, option
from user_dir.serving.exported_translator import ExportedTranslator, read_facts
from user_dir.serving.translator import Translator
from user_dir.tools import export_ctranslate2 as tool
from user_dir.tools import translate

from comparing import randomise
from support import EOS, OLD, PRE_NORM, SMALL, change, run

ctranslate2 = pytest.importorskip("ctranslate2")
CORES = len(os.sched_getaffinity(0))
SHARED = {"relative_tables": "shared", "relative_distance": 3}


def exported(path, data, folder):
    tool.main([str(path), "--data", str(data), "--output", str(folder)])
    return ctranslate2.Translator(str(folder), intra_threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The exported model of OLD, whose data are not needed any more."""
    folder = tmp_path_factory.mktemp("exported") / "ct2"
    tool.main([str(OLD / "vaswani_transformer.pt"), "--data", str(OLD / "data-bin"), "--output", str(folder)])
    return folder


@pytest.fixture(scope="module")
def texts():
    """Some that the model knows, an empty one, unknown words, and one that it takes in pieces."""
    known = (OLD / "test.fr").read_text(encoding="utf-8").splitlines()
    return [*known, "", "漢字", " ".join(known * 12)]


@pytest.mark.parametrize(
    "search", [{}, {"beam": 2, "nbest": 2}, {"batch_size": 1}, {"lenpen": 1.3, "max_tokens": 50}, {"lenpen": 0}]
)
def test_translations_of_a_trained_model(folder, texts, search):
    translator, found = Translator(OLD / "vaswani_transformer.pt", data=OLD / "data-bin"), ExportedTranslator(folder)
    rows = [translator.encode(text) for text in texts]
    assert [found.encode(text) for text in texts] == rows and len(found.pieces(rows[-1])) > 1
    expected, found = translator.search(rows, **search), found.search(rows, **search)
    assert [*map(len, found)] == [*map(len, expected)]
    assert [best.text for best, *_ in found] == [best.text for best, *_ in expected]  # the second may be another
    assert [best.score for best, *_ in found] == pytest.approx([best.score for best, *_ in expected], abs=1e-3)


def test_a_word_that_ctranslate2_uses_for_padding(tmp_path):
    data = shutil.copytree(OLD, tmp_path / "old", ignore=shutil.ignore_patterns("*.pt")) / "data-bin"
    for path in data.glob("dict.*"):
        path.write_text(re.sub(r"^chat ", "<blank> ", path.read_text(), flags=re.MULTILINE))
    tool.main([str(OLD / "vaswani_transformer.pt"), "--data", str(data), "--output", str(tmp_path / "exported")])
    rows = ["Le <blank> riche n&apos; aime pas le <blank> !"]
    ((expected, *_),) = Translator(OLD / "vaswani_transformer.pt", data=data).search(rows)
    ((found, *_),) = ExportedTranslator(tmp_path / "exported").search(rows)
    assert found.text == expected.text and "cat" in found.text


def test_translate_reads_the_folder(folder, texts, capsysbinary):
    translate.main([str(folder), "--pretokenised", texts[0]])
    split = capsysbinary.readouterr().out
    translate.main([str(folder), *texts])
    lines = capsysbinary.readouterr().out.decode().splitlines()
    expected = ExportedTranslator(folder).translate(texts)
    assert lines == expected and expected[len(texts) - 3] == "" and split.decode().strip() != lines[0]


def test_quantised_weights_nearly_give_the_same(folder, texts, tmp_path):
    model = str(OLD / "vaswani_transformer.pt"), "--data", str(OLD / "data-bin")
    tool.main([*model, "--output", str(tmp_path / "int8"), "--quantization", "int8"])
    folders = tmp_path / "int8", folder
    sizes = [(path / "model.bin").stat().st_size for path in folders]
    assert sizes[0] < 0.7 * sizes[1]
    assert [read_facts(path)["quantization"] for path in folders] == ["int8", None]
    found, expected = (ExportedTranslator(path).translate(texts[:20]) for path in folders)
    assert sum(map(str.__eq__, found, expected)) >= 18


@pytest.mark.parametrize("threads, workers", [("3,1", 3), ("0", CORES), ("", CORES)])
def test_threads_as_openmp_reads_them(folder, monkeypatch, threads, workers):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert ExportedTranslator(folder).model.num_translators == workers


@pytest.mark.parametrize("device, place", [(None, ("auto", 0, 3)), ("cpu", ("cpu", 0, 3)), ("cuda:1", ("cuda", 1, 1))])
def test_the_device_that_is_named(folder, monkeypatch, device, place):
    """A GPU has one worker."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(ctranslate2, "Translator", lambda folder, kind, **given: (kind, given))
    kind, given = ExportedTranslator(folder, device=device).model
    assert (kind, given["device_index"], given["inter_threads"]) == place


def test_longest_outputs(folder):
    """50 subwords more than the longest row of the batch, of like length, and </s>: others leave it as it is."""
    translator, given = ExportedTranslator(folder), []

    def translate_batch(sources, max_decoding_length, max_input_length, **_):
        assert max_input_length == 0  # else CTranslate2 would cut off what follows its 1,024th subword
        given.append((sorted(map(len, sources)), max_decoding_length))
        return [types.SimpleNamespace(hypotheses=[["a"]], scores=[0.0]) for _ in sources]

    translator.model = types.SimpleNamespace(translate_batch=translate_batch, num_translators=1)
    assert len(translator.best(["a " * length for length in (3, 200, 2)], 1)) == 3
    assert given == [([2, 3], 54), ([200], 251)]
    given.clear()
    translator.best(["a a a", "a a"], 1, batch_size=1)
    assert given == [([2], 53), ([3], 54)]


@pytest.mark.parametrize(
    "search, calls",
    [
        ({}, [(60, 20), (40, 14)]),
        ({"batch_size": 15}, [(45, 15), (45, 15), (10, 4)]),
        ({"batch_size": 99}, [(60, 20), (40, 14)]),
    ],
)
def test_a_call_has_one_batch_for_each_worker(folder, search, calls):
    """1,500 subwords for three workers: Python hears Ctrl-C, and a person sees progress, only between calls."""
    translator, given, counts = ExportedTranslator(folder), [], []

    def translate_batch(sources, max_batch_size, **_):
        given.append((len(sources), max_batch_size))
        return [types.SimpleNamespace(hypotheses=[["a"]], scores=[0.0]) for _ in sources]

    translator.model = types.SimpleNamespace(translate_batch=translate_batch, num_translators=3)
    assert len(translator.best(["a " * 24] * 100, 1, counts.append, max_tokens=1500, **search)) == 100
    assert given == calls and counts == [count for count, _ in calls]


def test_no_translation_is_longer_than_the_decoder_has_positions(tmp_path, texts):
    """CTranslate2 would fail at the first position without an encoding; fairseq ends the translation there."""
    shutil.copy(OLD / "vaswani_transformer.pt", tmp_path / "short.pt")
    change(tmp_path / "short.pt", model__max_target_positions=8, task__max_target_positions=8)
    tool.main([str(tmp_path / "short.pt"), "--data", str(OLD / "data-bin"), "--output", str(tmp_path / "ct2")])
    translator, found = Translator(tmp_path / "short.pt", data=OLD / "data-bin"), ExportedTranslator(tmp_path / "ct2")
    assert found.translate(texts[:50], beam=1) == translator.translate(texts[:50], beam=1)


def test_the_runs_settings_of_beam_search_go_along(tmp_path, refusal):
    """They hold where nobody gives others; a folder that was exported without them has the defaults."""
    shutil.copy(OLD / "vaswani_transformer.pt", tmp_path)
    kept = {"beam": 2, "lenpen": 0.3, "max_len_a": 2, "max_len_b": 7}
    (tmp_path / "search.json").write_text(json.dumps(kept))
    checkpoint, data = tmp_path / "vaswani_transformer.pt", OLD / "data-bin"
    tool.main([str(checkpoint), "--data", str(data), "--output", str(tmp_path / "a")])
    given = []

    def translate_batch(sources, beam_size, length_penalty, max_decoding_length, **_):
        given.append((beam_size, length_penalty, max_decoding_length))
        return [types.SimpleNamespace(hypotheses=[["a"]], scores=[0.0])]

    def search(**options):
        translator = ExportedTranslator(tmp_path / "a")
        translator.model = types.SimpleNamespace(translate_batch=translate_batch, num_translators=1)
        translator.best(["a b c"], 1, **options)

    search()
    search(beam=5, lenpen=0)
    facts = json.loads((tmp_path / "a/translator.json").read_text())
    assert facts.pop("search") == kept and facts.pop("characters") and facts.pop("longest_output")
    (tmp_path / "a/translator.json").write_text(json.dumps(facts))
    search()
    assert given == [(2, 0.3, 15), (5, 1e-6, 15), (4, 1, 54)] and ExportedTranslator(tmp_path / "a").respell is str
    (tmp_path / "a/translator.json").write_text(json.dumps({**facts, "search": {"beam": "many"}}))
    refusal(translate.main, tmp_path / "a", "w", match="translator.json: beam 'many': give a whole number")


def test_translating_needs_neither_torch_nor_fairseq(folder, texts):
    """Nor what else the page does not ask to install."""
    missing = ("torch", "omegaconf", "hydra", "sacrebleu", "matplotlib", "requests", "scipy")
    without = f"import sys; sys.modules.update(dict.fromkeys({missing}))"
    command = f"{without}; from user_dir.tools import translate; translate.main(sys.argv[1:])"
    (line,) = run("python", "-c", command, folder, texts[0]).stdout.splitlines()
    assert line == ExportedTranslator(folder).translate(texts[:1])[0] != ""


@pytest.mark.parametrize(
    "options, words",
    [
        (["--ensemble", "x.pt"], "is an export for CTranslate2: omit --ensemble"),
        (["--engine", "torch"], "omit --engine torch"),
        (["--autocast", "off"], "omit --autocast"),
        (["--lenpen-form", "vaswani"], "omit --lenpen-form"),
        (["--device", "cuda"], r"CTranslate2 cannot use .*: (?!.*\bremove\b)"),
    ],
)
def test_what_goes_with_no_folder(folder, options, words, refusal):
    refusal(translate.main, folder, "a", *options, match=words)


AGAIN = "export the checkpoint again, or remove .*ct2"


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("translator.json", None, "has neither average.pt nor translator.json: name a checkpoint"),
        ("manifest.json", None, "has no manifest.json .*: .*--pretokenised"),
        ("bpe/codes", None, f"ct2 is damaged, there are no subword codes .*: {AGAIN}"),
        ("model.bin", None, f"CTranslate2 cannot use .*: {AGAIN}"),
        ("translator.json", "[" * 200_000, f"RecursionError.: {AGAIN}"),
        ("translator.json", {"longest": "5"}, "ValueError"),
        ("translator.json", {"longest": None}, "ValueError"),
        ("translator.json", {"longest": 0}, "ValueError"),
        ("translator.json", {"longest_output": 0}, "ValueError"),
        ("translator.json", {"source_lang": ["en"]}, "ValueError"),
        ("shared_vocabulary.json", '["a"]', "CTranslate2 cannot use .*ct2: "),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_folder_that_lacks_something_or_that_somebody_made_up(folder, tmp_path, name, content, words, refusal):
    path = shutil.copytree(folder, tmp_path / "ct2") / name
    assert path.exists()
    if content is None:
        path.unlink()
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(json.loads(path.read_text()) | content))
    refusal(translate.main, tmp_path / "ct2", "a", match=words)


COMPUTED = [("vaswani_transformer_base", {}), ("relative_transformer_base", SHARED)]
COMPUTED += [("vaswani_transformer_base", {name: True}) for name in ("no_scale_embedding", "layernorm_embedding")]
COMPUTED += [("vaswani_transformer_base", {"activation_fn": "gelu"})]
COMPUTED += [("vaswani_transformer_base", {"decoder_attention_heads": 2, "no_decoder_final_norm": True})]
NORMS = {"post": {}, "pre": PRE_NORM, **{name: {name: True} for name in PRE_NORM}}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("arch, options", COMPUTED)
def test_probabilities(saved, dictionary, tmp_path, arch, options, norm):
    """With a sentence far longer than the tables."""
    model, path, data = saved(arch, **options, **norm)
    state = torch.load(path, weights_only=False)
    state["model"] = randomise(model, 3).state_dict()
    torch.save(state, path)
    source, target = torch.randint(4, 50, (2, 1, 25))
    model.eval()
    inputs = torch.cat([torch.tensor([[EOS]]), target], dim=1)
    source = torch.cat([source, torch.tensor([[EOS]])], dim=1)
    logits, _ = model(source, torch.tensor([26]), inputs)
    wanted = torch.cat([target, torch.tensor([[EOS]])], dim=1)
    expected = logits.log_softmax(-1).gather(2, wanted[..., None])[0, :, 0].tolist()
    words = [[dictionary[word] for word in row] for row in (source[0, :-1].tolist(), target[0].tolist())]
    words[1] = [word.replace("w", "v") for word in words[1]]  # the languages have dictionaries of their own
    (data / "dict.tgt.txt").write_text((data / "dict.tgt.txt").read_text().replace("w", "v"))
    (found,) = exported(path, data, tmp_path / "ct2").score_batch([words[0]], [words[1]])
    assert found.log_probs == pytest.approx(expected, abs=1e-3)
    assert read_facts(tmp_path / "ct2")["characters"] == "0123456789w"  # of the source


@pytest.mark.parametrize(
    "family, options, words",
    [
        ("relative", {}, "relative positions other than keys and values in shared tables"),
        ("relative", {**SHARED, "relative_positions": "keys"}, "positions other than keys and values"),
        ("relative", {**SHARED, "relative_attention": "all"}, "--relative-attention all"),
        ("relative", {**SHARED, "absolute_positions": "add"}, "both relative positions and position embeddings"),
        ("weighted", {}, "--branched-attention self"),
        ("weighted_relative", SHARED, "--branched-attention self"),
        ("vaswani", {"no_token_positional_embeddings": True}, "no position embeddings"),
        ("vaswani", {"activation_fn": "tanh"}, "--activation-fn tanh"),
        ("vaswani", {"attention_key_dim": 3}, "--attention-key-dim 3"),
        ("vaswani", {"restricted_attention": "both"}, "--restricted-attention both"),
        ("vaswani", {"decoder_output_dim": 24}, "a --decoder-output-dim that is not --decoder-embed-dim"),
    ],
)
def test_what_it_does_not_compute(saved, tmp_path, family, options, words):
    _, path, data = saved(f"{family}_transformer_base", **options)
    with pytest.raises(SystemExit, match=f"checkpoint.pt has .*{words}.* CTranslate2 does not compute: translate"):
        exported(path, data, tmp_path / "ct2")
    assert not [*tmp_path.glob("ct2*")]


@pytest.mark.parametrize("name", ["layers.1.self_attn", "layers.1", "layers.1.fc1", "layers.0.final_layer_norm", ""])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_variant_without_options_is_not_computed(build, side, name):
    """As of user_dir/variant.md, but with options of its family only."""
    model = build("vaswani_transformer_base")
    tool.refuse("a.pt", model)
    part = getattr(model, side).get_submodule(name)
    part.__class__ = type("Own", (type(part),), {"__module__": "own"})
    with pytest.raises(tool.NotComputed, match="a.pt has Own, which CTranslate2 does not compute"):
        tool.refuse("a.pt", model)


def test_the_option_of_a_variant_is_not_computed(build):
    @dataclass
    class OwnConfig(VariantConfig):
        gated_ffn: bool = option(False, "")

    model = build("vaswani_transformer_base")
    for gated in (False, True):
        given = argparse.Namespace(**SMALL, decoder_output_dim=16, gated_ffn=gated)
        model.cfg = OwnConfig.from_namespace(given)
        with pytest.raises(tool.NotComputed, match="--gated-ffn True,") if gated else contextlib.nullcontext():
            tool.refuse("a.pt", model)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_diverged_model(saved, tmp_path, number, refusal):
    _, path, data = saved("vaswani_transformer_base")
    state = torch.load(path)
    state["model"]["decoder.layers.1.fc1.weight"][0, 0] = number
    torch.save(state, path)
    words = "decoder.layers.1.fc1.weight in .*checkpoint.pt is not finite, .*: use another model"
    refusal(tool.main, path, "--data", data, "--output", tmp_path / "ct2", match=words)
    assert not [*tmp_path.glob("ct2*")]


@pytest.mark.parametrize(
    "output, words",
    [
        ("no/ct2", "no/ct2: there is no folder .*/no: make it"),
        ("/sys/ct2", "/sys/ct2 cannot be written: "),
        ("ct2", "ct2 exists: remove it, or name another folder"),
    ],
)
def test_a_folder_that_cannot_be_written(tmp_path, refusal, output, words):
    (tmp_path / "ct2").mkdir()
    checkpoint = [OLD / "vaswani_transformer.pt", "--data", OLD / "data-bin"]
    refusal(tool.main, *checkpoint, "--output", tmp_path / output, match=words)


def test_if_possible(saved, tmp_path, monkeypatch):
    """Nothing, and no error, of a model that CTranslate2 does not compute, of fairseq's own, or without the library."""
    for arch in ("weighted_transformer_base", "transformer"):
        _, path, data = saved(arch)
        tool.main([str(path), "--data", str(data), "--output", str(tmp_path / "ct2"), "--if-possible"])
    with pytest.raises(SystemExit, match="is not of this project's families: convert it first"):
        exported(path, data, tmp_path / "ct2")
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: None)
    tool.main(["nowhere.pt", "--output", str(tmp_path / "ct2"), "--if-possible"])
    assert not [*tmp_path.glob("ct2*")]


def test_the_papers_length_penalty(tmp_path, capsys):
    """An export has fairseq's, and says so; with --if-possible there is none."""
    shutil.copy(OLD / "vaswani_transformer.pt", tmp_path)
    (tmp_path / "search.json").write_text('{"beam": 2, "lenpen": 0.6, "lenpen_form": "vaswani"}')
    words = [str(tmp_path / "vaswani_transformer.pt"), "--data", str(OLD / "data-bin"), "--output"]
    tool.main([*words, str(tmp_path / "none"), "--if-possible"])
    assert not (tmp_path / "none").exists() and not capsys.readouterr().err
    tool.main([*words, str(tmp_path / "ct2")])
    assert "does not compute the run's --lenpen-form vaswani: " in capsys.readouterr().err
    assert json.loads((tmp_path / "ct2/translator.json").read_text())["search"] == {"beam": 2}


def test_a_link_stays_one(tmp_path):
    """To the disk where the folder is."""
    (tmp_path / "link").symlink_to("folder")
    for _ in range(2):
        exported(OLD / "vaswani_transformer.pt", OLD / "data-bin", tmp_path / "link")
        assert (tmp_path / "link").is_symlink() and sorted(os.listdir(tmp_path)) == ["folder", "link"]
