"""Installing: what it refuses, and that an installed environment is left alone."""

import os
import pathlib
import re
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import PROJECT, executable, run

PYTHON = shlex.quote(sys.executable)


@pytest.fixture
def checkout(tmp_path):
    """The files that installing reads, in a folder of their own."""
    locking = [f"data-prep/preparation/{name}.py" for name in ("__init__", "locking")]
    scripts = ("examples/install/environment.sh", "examples/install/cores.sh")
    for name in (*scripts, "examples/install/constraints.txt", "setup.py", *locking):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    # Here and not where it is run: of two that run it at a time one would read what the other is writing.
    (tmp_path / "script.sh").write_text("set -euo pipefail\n. examples/install/environment.sh\nwhich python\n")
    return tmp_path


def source(checkout, ok=False, **env):
    env = {"VIRTUAL_ENV": "", "CONDA_PREFIX": "", "INSTALL": "", **env}
    return run("bash", checkout / "script.sh", cwd=checkout, env=env, ok=ok)


def activate(checkout, answers):
    """Makes an active environment, whose python has these answers in a shell's `case`; returns its folder."""
    environment = checkout / "active"
    (environment / "bin").mkdir(parents=True)
    stand_in = f'case "$*" in {answers} *prefix*) echo {environment};; *) exec {PYTHON} "$@";; esac'
    executable(environment / "bin/python", stand_in)
    script = checkout / "script.sh"
    script.write_text(f"PATH={environment}/bin:$PATH\n{script.read_text()}")
    return environment


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (3, 15), None])
def test_refuses_another_or_missing_python(checkout, version):
    if version:
        other = f'{PYTHON} -c "import sys; sys.version_info = {version}; $2"'
        executable(checkout / "other", f"[ $1 != --version ] || {{ echo '{version}'; exit; }}\nexec {other}")
    done = source(checkout, PYTHON=str(checkout / "other"))
    assert done.returncode == 1
    for words in ("Python 3.11 to 3.13 is needed", str(version or "missing"), "PYTHON="):
        assert words in done.stderr
    assert not (checkout / ".venv").exists()


# A Python that has torch and fairseq; two of its pips at a time fail, as pip's own do.
STAND_IN = f"""case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip show "*) ;;
  "-m pip "*) mkdir pip || exit 1; echo "$*" >> pips; rmdir pip ;;
  "-c import torch") ;;
  *) exec {PYTHON} "$@" ;;
esac
"""


def test_nothing_is_downloaded_where_fairseq_cannot_be_compiled(checkout):
    bare = 'case "$*" in "-m pip show "*) exit 1 ;; "-c import sysconfig"*) echo nowhere; exit ;; esac'
    executable(checkout / "python", f"{bare}\n{STAND_IN}")
    executable(checkout / "c++", "")
    done = source(checkout, PYTHON=str(checkout / "python"), CXX=str(checkout / "c++"))
    package = "python{}.{}-dev".format(*sys.version_info)
    assert done.returncode == 1 and f"has no headers. Install them, e.g.: apt-get install {package}" in done.stderr
    assert not (checkout / "pips").exists()


def test_another_python_than_the_active_environments(checkout):
    """As after `module load python` in an active one: it would install into that Python."""
    done = source(checkout, CONDA_PREFIX=str(checkout / "gone"))
    assert done.returncode == 1 and f"{checkout}/gone is active, and python is that of {sys.prefix}" in done.stderr


def test_nothing_is_installed_if_it_is_unclear_whether_to(checkout):
    executable(checkout / "python", STAND_IN)
    done = source(checkout, INSTALL="0", PYTHON=str(checkout / "python"))
    assert done.returncode == 1 and "INSTALL=0: give INSTALL=no, or omit it" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_read_only_checkout(checkout):
    """As a teacher's, for which a file stands here: root may write everywhere."""
    (checkout / ".venv").touch()
    done = source(checkout)
    assert done.returncode == 1 and done.stderr.endswith(f"as it is: INSTALL=no {checkout}/script.sh\n"), done.stderr
    assert "/.venv cannot be written: clone the project" in done.stderr and done.stderr.count("\n") == 1


def test_an_active_environment_without_pip(checkout):
    """As uv makes it."""
    environment = activate(checkout, '"-m pip "*) echo No module named pip >&2; exit 1;;')
    done = source(checkout, VIRTUAL_ENV=str(environment))
    remedy = "has no pip. Add it: python -m ensurepip, or, if uv made it, uv pip install pip\n"
    assert done.returncode == 1 and done.stderr.endswith(remedy)


def test_packages_of_an_active_environment_are_kept(checkout):
    """pip is given the versions of the others only."""
    listed = "printf '%s==1\\n' numpy cython antlr4_python3_runtime"  # as their older versions are spelt
    answers = f'"-m pip install "*) cat "$7";; "-m pip list "*) {listed};; "-m pip "* | "-c import torch");;'
    (checkout / "tmp").mkdir()
    environment = activate(checkout, answers)
    done = source(checkout, VIRTUAL_ENV=str(environment), TMPDIR=str(checkout / "tmp"), ok=True)
    assert "\nsacremoses==" in done.stdout and not re.search(r"^(numpy|Cython|antlr4)", done.stdout, re.MULTILINE)
    assert not [*(checkout / "tmp").iterdir()]


def test_another_checkout_in_the_same_environment(checkout):
    """Its code is replaced by this one's, so it has to install its own again, whatever extras it had."""
    environment = activate(checkout, '"-m pip "* | "-c import torch");;')
    other = environment / "fairseq-transformer-variants.ctranslate2.installed"
    other.write_text("1 1\n")
    done = source(checkout, VIRTUAL_ENV=str(environment))
    assert done.returncode == 0 and not other.exists(), done.stderr
    assert (environment / "fairseq-transformer-variants..installed").exists()


@pytest.mark.parametrize(
    "gpus, url",
    [
        ("9.0, 580.65.06", ""),
        ("7.5, 580.65.06", ""),
        (None, "+cpu"),
        ("7.5, 550.54.15", "https://download.pytorch.org/whl/cu126"),
        ("7.0, 580.65.06\n9.0, 580.65.06", "https://download.pytorch.org/whl/cu126"),
        ('Field "compute_cap" is not a valid field to query.', "https://download.pytorch.org/whl/cu126"),
    ],
)
def test_torch_for_the_gpu(checkout, gpus, url):
    executable(checkout / "python", STAND_IN.replace('"-c import torch") ;;', '"-c import torch") exit 1 ;;'))
    (checkout / "bin").mkdir()
    executable(checkout / "bin/nvidia-smi", f"[ $1 = -L ] || echo '{gpus}'" if gpus else "exit 9")
    path = f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = source(checkout, PYTHON=str(checkout / "python"), PATH=path)
    (torch,) = re.findall(r"-m pip install (?:-q )?torch==[\d.]+(.*)", (checkout / "pips").read_text())
    assert done.returncode == 0 and torch == (f" --index-url {url}" if "/" in url else url), done.stderr


@pytest.mark.parametrize(
    "limit, expected", [("max 100000", None), ("50000 100000", 1), ("100000 100000", 1), (None, None)]
)
def test_cores_of_a_container(checkout, limit, expected):
    if limit:
        (checkout / "cpu.max").write_text(limit + "\n")
    (checkout / "script.sh").write_text("set -euo pipefail\n. examples/install/environment.sh\ncores cpu.max\n")
    done = source(checkout, INSTALL="no")
    processors = run("env", "-u", "OMP_NUM_THREADS", "nproc").stdout  # newer ones see quotas, too
    assert int(done.stdout) == (expected or int(processors)), done.stderr


def test_torch_has_the_cores_of_a_container_whose_nproc_sees_the_limit(checkout):
    """As that of newer coreutils: torch itself would start a thread for each core of the host."""
    (checkout / "bin").mkdir()
    executable(checkout / "bin/nproc", "echo 1")
    (checkout / "script.sh").write_text("set -euo pipefail\n. examples/install/environment.sh\necho $OMP_NUM_THREADS\n")
    path = f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = source(checkout, INSTALL="no", OMP_NUM_THREADS="", PATH=path)
    assert done.stdout.strip() == ("1" if len(os.sched_getaffinity(0)) > 1 else ""), done.stderr


def test_two_installations_at_a_time(checkout):
    """The second waits, says for which process, and finds it installed."""
    executable(checkout / "python", STAND_IN.replace("rmdir", "sleep 2; rmdir"))
    with ThreadPoolExecutor() as pool:
        env = {"PYTHON": str(checkout / "python"), "extras": "ctranslate2"}
        both = list(pool.map(lambda _: source(checkout, **env), range(2)))
    assert [done.returncode for done in both] == [0, 0], both
    assert {done.stdout.splitlines()[-1] for done in both} == {f"{checkout}/.venv/bin/python"}
    pips = (checkout / "pips").read_text()
    assert pips.count("\n") == 1 and pips.endswith(f" -e {checkout}[ctranslate2]\n")
    first, second = sorted(both, key=lambda done: len(done.stderr))
    assert first.stderr == "" and "installing" in first.stdout
    assert re.match(rf"{checkout}/.venv: process \d+ on .*bash .*script.sh.* writes there; waiting", second.stderr)
    assert "installing" not in second.stdout


def test_a_virtual_environment_without_pip_is_completed(checkout):
    """Debian's Python leaves one where python3-venv is missing; so does Ctrl-C."""
    executable(checkout / "python", STAND_IN)
    half = checkout / ".venv/bin/python"
    half.parent.mkdir(parents=True)
    executable(half, f'case "$*" in *pip*) echo No module named pip; exit 1;; *) exec {PYTHON} "$@";; esac')
    source(checkout, PYTHON=str(checkout / "python"), ok=True)


def test_a_virtual_environment_whose_python_is_gone(checkout):
    """As after an upgrade of the Python that made it; the note of the installation is still right."""
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").symlink_to(checkout / "gone")
    done = source(checkout, PYTHON=sys.executable)
    assert done.returncode == 1 and f"{checkout}/.venv was made with is gone; remove this folder" in done.stderr


@pytest.mark.parametrize(
    ("python", "head"),
    [
        ("/gone/.venv/bin/python", "#!{}"),
        ("/gone away/.venv/bin/python", "#!/bin/sh\n'''exec' \"{}\" \"$0\" \"$@\"\n' '''"),
        (f"/gone/{'a' * 127}/.venv/bin/python", "#!/bin/sh\n'''exec' {} \"$0\" \"$@\"\n' '''"),
    ],
)
def test_a_checkout_that_was_moved(checkout, python, head):
    """Its python still runs, and pip would install the project; fairseq-train would not be found."""
    (checkout / ".venv/bin").mkdir(parents=True)
    executable(checkout / ".venv/bin/python", STAND_IN)
    (checkout / ".venv/bin/fairseq-train").write_text(f"{head.format(python)}\n# -*- coding: utf-8 -*-\n")
    done = source(checkout)
    assert done.returncode == 1 and not (checkout / "pips").exists()
    assert done.stderr.endswith(f"its commands need {python}; remove this folder\n")


def test_leaves_an_installed_environment_alone(checkout):
    """With the note of an earlier installation nothing is run but the check: no pip, no .venv."""
    environment = activate(checkout, "*pip*) exit 9;;")
    files = f"cat {checkout}/setup.py {checkout}/examples/install/constraints.txt; echo {checkout}/user_dir/tools/*.py"
    note = run("sh", "-c", f"{{ {files}; }} | cksum").stdout
    (environment / "fairseq-transformer-variants..installed").write_text(note)
    done = run("bash", checkout / "script.sh", cwd=checkout, env={"VIRTUAL_ENV": str(environment)})
    assert pathlib.Path(done.stdout.strip()) == environment / "bin/python"
    assert not (checkout / ".venv").exists()


def test_the_note_of_an_installation_is_the_same_in_all_locales(checkout):
    """Locales sort the tools' names differently: a stand-in for cksum notes only the locale."""
    environment = activate(checkout, "*pip*) exit 9;;")
    script = checkout / "script.sh"
    script.write_text(f'cksum() {{ cat > /dev/null; echo "$LC_ALL"; }}\n{script.read_text()}')
    (environment / "fairseq-transformer-variants..installed").write_text("C\n")
    source(checkout, VIRTUAL_ENV=str(environment), LC_ALL="en_US.UTF-8", ok=True)


def test_a_machine_without_a_package_index(tmp_path):
    """gpu.sh's `python` has the packages of a virtual environment's python3, and those in SITE."""
    (tmp_path / "unpacked.py").touch()
    words = ["python", "-c", "import sys, tqdm, unpacked; print(unpacked.__file__, sys.flags.utf8_mode)"]
    done = run("bash", PROJECT / "tests/gpu.sh", *words, env={"SITE": str(tmp_path), "PYTHONUTF8": ""})
    assert done.stdout.split() == [str(tmp_path / "unpacked.py"), "1"]
