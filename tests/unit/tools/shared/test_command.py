"""How a tool ends when it cannot go on."""

import argparse
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from user_dir.errors import InputError
from user_dir.tools.shared.command import add_checkpoint, add_search, exit_in_one_line, new_parser, table

from support import PROJECT


@pytest.mark.parametrize(
    "error, code",
    [
        (InputError("a.pt is\n  not  a checkpoint"), "tool: a.pt is not a checkpoint"),
        (InputError("the unknown model \x1b]0;é\x07\x9b2J"), "tool: the unknown model ?]0;é??2J"),
        (FileNotFoundError(2, "No such file", "a.pt"), "tool: a.pt: No such file"),
        (ModuleNotFoundError("…", name="matplotlib"), "tool: matplotlib is not installed: pip install matplotlib"),
        (ModuleNotFoundError("…", name="fairseq"), "tool: fairseq is not installed: pip install fairseq-fixed"),
        (ModuleNotFoundError("…", name="sklearn"), "tool: sklearn is not installed: pip install scikit-learn"),
        (KeyboardInterrupt(), 130),
    ],
)
def test_one_line(error, code):
    @exit_in_one_line("tool")
    def main():
        raise error

    for _ in range(2):  # a decorated function can be called again
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == code


def test_the_folder_of_a_run_stands_for_its_average(tmp_path):
    parser = new_parser("tool", "")
    add_checkpoint(parser)
    assert parser.parse_args([str(tmp_path)]).checkpoint == tmp_path
    (tmp_path / "average.pt").touch()
    for given in (tmp_path, tmp_path / "average.pt"):
        assert parser.parse_args([str(given)]).checkpoint == tmp_path / "average.pt"


def test_mistakes_of_ours_are_not_hidden():
    with pytest.raises(ValueError), exit_in_one_line("tool"):
        raise ValueError


@pytest.mark.parametrize("beam", ["0", "-1", "2.5", "many"])
def test_numbers(beam, capsys):
    parser = new_parser("tool", "what for\n\n    tool  FILE")
    add_search(parser)
    assert parser.parse_args(["--beam", "3"]) == argparse.Namespace(beam=3, lenpen=None)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--beam", beam])
    said = f"tool: error: argument --beam: invalid whole number, at least 1, value: '{beam}'; see --help\n"
    assert capsys.readouterr().err == said
    assert "\n    tool  FILE\n" in parser.format_help()


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_ends_a_command_and_is_as_before_then(number, code):
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as stop, exit_in_one_line("tool"):
        assert signal.getsignal(number) != before  # else it would end the tests
        signal.raise_signal(number)
    assert stop.value.code == code and signal.getsignal(number) == before
    with ThreadPoolExecutor() as pool:
        assert pool.submit(exit_in_one_line("tool")(lambda: "done")).result() == "done"


@pytest.mark.parametrize("words", ["-m user_dir.tools.precision", "{}/nmt-precision"])
def test_ctrl_c_ends_a_command_while_it_imports_a_library(words, tmp_path):
    """Also where that library would go on."""
    library = "import signal\ntry: signal.raise_signal(signal.SIGINT)\nexcept BaseException: print('lost')"
    (tmp_path / "torch.py").write_text(library)
    (tmp_path / "nmt-precision").write_text("import user_dir.tools.precision")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PROJECT}"}
    command = [sys.executable, *words.format(tmp_path).split()]
    done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_a_signal_that_nohup_ignores_ends_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with exit_in_one_line("tool"):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_output_that_cannot_be_written():
    """Python holds back what goes into a pipe or a file until it ends."""
    program = "from user_dir.tools.shared.command import exit_in_one_line as end; end('tool')(lambda: print('done'))()"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    started = {"args": [sys.executable, "-c", program], "cwd": PROJECT, "env": env, "stderr": subprocess.PIPE}
    with subprocess.Popen(stdout=subprocess.PIPE, **started) as done:
        done.stdout.close()
        assert done.stderr.read() == b""
    assert done.returncode == 141
    with open("/dev/full", "w") as full:
        done = subprocess.run(stdout=full, **started)
    assert done.stderr == b"tool: [Errno 28] No space left on device\n" and done.returncode == 1
    started["args"][-1] = program.replace("done", "κ – ±")
    started["env"] |= {"PYTHONIOENCODING": "latin-1:strict"}
    done = subprocess.run(stdout=subprocess.PIPE, **started)
    assert (done.stdout, done.stderr) == (b"\\u03ba \\u2013 \xb1\n", b"")


def test_names_end_no_cell():
    found = table(["run", "BLEU"], [["a|b\nc\r\nd", "1.0"]])
    assert found == "| run | BLEU |\n| --- | ---: |\n| a\\|b c d | 1.0 |"
