"""translate uses a run's export to CTranslate2 where that translates as the checkpoint does now, and says so."""

import json
import os
import shutil
import sys

import pytest
import torch

from user_dir.serving.exported_translator import fingerprint
from user_dir.tools import export_ctranslate2, translate
from user_dir.tools.shared import engine, precision

from support import OLD, change, run

TEXT = (OLD / "test.fr").read_text(encoding="utf-8").splitlines()[0]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run's folder with average.pt, whose data are there, and its export."""
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("run")
    save(folder / "average.pt")
    export_ctranslate2.main([str(folder / "average.pt"), "--output", str(folder / "ctranslate2")])
    return folder


def save(path, weights=1.0):
    state = torch.load(OLD / "vaswani_transformer.pt", weights_only=False)
    for weight in state["model"].values():
        weight *= weights
    torch.save(state, path)
    change(path, task__data=str(OLD / "data-bin"))


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "run")  # without the times of the files


@pytest.fixture
def translated(capsys):
    """translated(…): the translation of TEXT, and what was said of the engine."""

    def translated(*arguments):
        translate.main([*map(str, arguments), "--no-split-sentences", TEXT])
        output = capsys.readouterr()
        return output.out, output.err

    return translated


def test_the_same_translation_from_the_run_its_average_and_torch(folder, translated):
    text, said = translated(folder)
    assert said == f"nmt-translate: with CTranslate2: {folder}/ctranslate2\n" and text.strip()
    assert translated(folder / "average.pt") == (text, said)
    assert translated(folder, "--engine", "ctranslate2") == (text, "")
    assert translated(folder, "--engine", "ctranslate2", "--nbest", "2")[0].count("\n") == 2
    assert translated(folder, "--engine", "torch") == (text, "")
    assert translated(folder / "ctranslate2") == (text, "")
    tokens = translated(folder, "--pretokenised")[0]
    assert translated(folder / "ctranslate2", "--pretokenised")[0] == tokens != text


def test_a_stale_export_is_not_used(folder, translated):
    """Also where the new average has the old one's size and time."""
    path = folder / "average.pt"
    before, exported = path.stat(), fingerprint(path)
    save(path, 1.5)
    assert path.stat().st_size == before.st_size
    shutil.copystat(OLD / "vaswani_transformer.pt", path)
    expected = translated(folder, "--engine", "torch")[0]
    text, said = translated(folder)
    assert text == expected and fingerprint(path) != exported
    reason = f"{folder}/ctranslate2 was exported from another file than {path}"
    assert said == f"nmt-translate: with torch, because {reason}\n"
    with pytest.raises(SystemExit, match=f"nmt-export-ctranslate2 {path} --output {folder}/ctranslate2$"):
        translated(folder, "--engine", "ctranslate2")
    export_ctranslate2.main([str(path), "--output", str(folder / "ctranslate2")])  # in place of the other
    assert "with CTranslate2" in translated(folder)[1] and translated(folder)[0] == expected


def test_other_settings_of_beam_search_and_rounded_weights(folder, translated):
    (folder / "search.json").write_text('{"beam": 2}')
    assert "because" in translated(folder)[1]
    (folder / "search.json").write_text('{"lenpen_form": "vaswani"}')  # another export would not have it either
    with pytest.raises(SystemExit, match="than search.json beside .*: omit --engine$"):
        translated(folder, "--engine", "ctranslate2")
    (folder / "search.json").write_text('{"lenpen": 1.5, "lenpen_form": "fairseq"}')
    export_ctranslate2.main([str(folder / "average.pt"), "--output", str(folder / "ctranslate2")])
    assert "with CTranslate2" in translated(folder)[1]
    (folder / "search.json").unlink()
    export_ctranslate2.main([str(folder / "average.pt"), "--output", str(folder / "ctranslate2")])
    facts = folder / "ctranslate2/translator.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"quantization": "int8"}))
    assert "has the weights in int8" in translated(folder)[1]
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "quantization": None, "checkpoint": None}))
    assert "from another file" in translated(folder)[1]  # as of version 0.1


@pytest.mark.parametrize(
    "options",
    [["--data", OLD / "data-bin"], ["--autocast", "off"], ["--lenpen-form", "fairseq"], ["--nbest", "1"]],
    ids=lambda options: options[0],
)
def test_options_that_need_torch(folder, translated, options):
    assert translated(folder, *options)[1] == f"nmt-translate: with torch, because {options[0]} is given\n"


def test_an_option_that_ctranslate2_lacks_is_to_be_omitted(folder, refusal):
    options = ["--engine", "ctranslate2", "--lenpen-form", "fairseq"]
    refusal(translate.main, folder, TEXT, *options, match="--lenpen-form is given: omit --lenpen-form$")


def test_a_gpu(folder, translated, monkeypatch):
    """Torch has it, unless the CPU is asked for."""
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 1)
    assert "because there is a GPU" in translated(folder)[1]
    assert "with CTranslate2" in translated(folder, "--device", "cpu")[1]
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 0)
    args = translate.parse([str(folder), TEXT, "--device", "cuda"])
    assert engine.why_torch(args, folder / "ctranslate2") == "--device is given"
    assert translated(folder, "--device", "cpu:0")[1] == "nmt-translate: with torch, because --device is given\n"


def test_no_export_is_blamed_for_a_device(folder, refusal):
    for device in ("cpu:1", "cpu:x"):
        refusal(translate.main, folder / "ctranslate2", TEXT, "--device", device, match=": use --device cpu$")


def test_without_ctranslate2(folder, translated, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    assert "because ctranslate2 is not installed" in translated(folder)[1]
    with pytest.raises(SystemExit, match="ctranslate2 is not installed: pip install ctranslate2"):
        translated(folder, "--engine", "ctranslate2")


def test_no_checkpoint_of_torchs(folder, refusal):
    """Damaged, missing or a pipe that nobody writes to: no export goes with it, and the message is as without one."""
    (folder / "cut.pt").write_bytes((folder / "average.pt").read_bytes()[:-50])
    os.mkfifo(folder / "pipe.pt")
    for name in ("cut.pt", "pipe.pt", "missing.pt"):
        refusal(translate.main, folder / name, TEXT, match="not a readable fairseq checkpoint|there is no checkpoint")
    facts = folder / "ctranslate2/translator.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"checkpoint": None}))  # as of version 0.1
    refusal(translate.main, folder / "cut.pt", TEXT, match="not a readable fairseq checkpoint")


@pytest.mark.parametrize(
    "trained, gain, chosen", [("bf16", "bf16", None), ("bf16", "off", "off"), ("off", "bf16", None)]
)
def test_precision(saved, monkeypatch, trained, gain, chosen):
    """That of the training, but float32 where this machine gains nothing by bfloat16."""
    _, path, _ = saved("vaswani_transformer_base", autocast=trained)
    monkeypatch.setattr(precision, "faster_precision", lambda device: gain)
    assert engine.precision([path], "cpu") == chosen


def test_a_module_that_is_imported_when_it_is_called(monkeypatch):
    for name in ("wsgiref", "wsgiref.util"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with engine.imported_when_called("wsgiref", "wsgiref.util", "json"):
        import json as loaded
        from wsgiref import util
        from wsgiref.util import guess_scheme
    assert "wsgiref" not in sys.modules and "wsgiref.util" not in sys.modules and loaded is json
    assert util.guess_scheme({}) == guess_scheme({}) == "http" and "wsgiref.util" in sys.modules


def test_torch_starts_without_scipy_and_scikit_learn(exported):
    """Else a sentence takes a third longer. In a process of its own, which has imported nothing."""
    check = "print([name for name in ('torch', 'scipy', 'sklearn') if name in sys.modules])"
    code = f"import sys; from user_dir.tools import translate; translate.main(sys.argv[1:]); {check}"
    done = run("python", "-c", code, exported, "--engine", "torch", TEXT, env={"PYTHONUTF8": "1"})
    assert done.stdout.splitlines()[1:] == ["['torch']"]
