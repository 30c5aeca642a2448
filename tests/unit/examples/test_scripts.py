"""Comparisons of recipes, and what all scripts have in common: help, signals, a user's shell."""

import os
import re
import signal
import subprocess
import sys

import pytest
from gpu import Commands
from unit.examples.support import EXAMPLES, bash, copied, definitions, last_options, option, plan, unbroken

from support import PROJECT, ended, executable


def test_translations_of_text_with_nul(tmp_path):
    (tmp_path / "log").write_bytes(b"S-1\ta\0b\nD-10\t-1\tlast\nD-2\t-1\tsecond\nD-0\t-1\tfirst\n")
    done = bash("-euc", f"{definitions('write_translations')}\nwrite_translations log out", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "out").read_text() == "first\nsecond\nlast\n"


def test_output_that_was_cut_off_does_not_take_its_name(tmp_path):
    """translations.TARGET of an earlier translation may be there, and the step would be skipped."""
    call = f"{definitions('write_to')}\nwrite_to log err sh -c 'echo D-1; exit 3'"
    assert bash("-euc", call, cwd=tmp_path).returncode == 3 and not (tmp_path / "log").exists()


def test_an_environment_that_is_not_active_is_no_fault_of_the_corpus(tmp_path):
    """Another corpus was advised, because nothing could be prepared."""
    env = {"INSTALL": "no", "PATH": os.defpath, "PYTHON": sys.executable}
    done = bash(copied(tmp_path) / "quickstart.sh", env=env)
    assert done.returncode == 1 and not (tmp_path / "data").exists()
    assert done.stderr.startswith("quickstart.sh: INSTALL=no, and PATH has no fairseq-train: activate ")


def test_more_time_is_for_the_command_that_was_typed(tmp_path):
    """The script's name alone would train another model, or with fewer updates."""
    (tmp_path / "train.log").write_text("Stopping training due to cumulative_training_time: 7 > stop_time_hours: 7\n")
    text = (EXAMPLES / "quickstart.sh").read_text(encoding="utf-8")
    (told,) = re.findall(r"^if [^\n]*cumulative_training_time.*?^fi$", text, re.MULTILINE | re.DOTALL)
    said = bash("-euc", f"dry_run= run={tmp_path} updates=9\n{told}", "examples/quickstart.sh").stdout
    assert "9 updates" in said and "MINUTES=60 OUTPUT=" in said and "quickstart.sh" not in said


def test_a_table_of_another_corpus_has_its_reference():
    env = {"RECIPE": "wmt14", "ROWS": "k-1", "TARGET": "fr", "SMOKE": "1"}
    text = bash(EXAMPLES / "ablations.sh", "shaw-distance", "--dry-run", env=env).stdout
    assert text.rstrip().endswith("--reference data/wmt14.en-fr.smoke/raw/test.fr")
    assert "fairseq-train data/wmt14.en-fr.smoke/data-bin" in text


@pytest.mark.parametrize(
    "variables, compared",
    [
        ({"STEPS": "prepare"}, False),
        ({"STEPS": "train"}, False),
        ({"STEPS": "average translate score"}, True),
        ({"NODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "first"}, False),
    ],
)
def test_rows_without_scores_are_not_compared(variables, compared):
    """The steps of slurm.sbatch, which would end after the first of them, and another host than the first."""
    env = {"RECIPE": "wmt14", "ROWS": "k-1", "GPUS": "1", **variables}
    done = bash(EXAMPLES / "ablations.sh", "shaw-distance", "--dry-run", env=env)
    assert (done.returncode, "user_dir.tools.compare" in done.stdout) == (0, compared), done.stderr


def test_rows_of_the_papers_corpus():
    """Each with its size, its options and its seed."""
    env = {"RECIPE": "wmt14", "ROWS": "big D.smoothing-0", "SEEDS": "2", "GPUS": "1"}
    text = unbroken(bash(EXAMPLES / "ablations.sh", "vaswani", "--dry-run", env=env).stdout)
    rows = text.split("# ==== ")[1:4]
    assert [row.partition(",")[0] for row in rows] == ["base", "D.smoothing-0", "big"]
    assert text.count("/checkpoint_last.pt --output ") == 3  # as in the papers' ablations
    names = ("arch", "seed", "label-smoothing")
    assert [(*last_options(row, names).values(),) for row in rows] == [
        ("vaswani_transformer_base", "2", "0.1"),
        ("vaswani_transformer_base", "2", "0.0"),
        ("vaswani_transformer_big", "2", "0.1"),
    ]


def test_the_plan_of_a_comparison(tmp_path):
    """It needs nothing that is installed, and ends in the commands that compare."""
    variables = {"FAMILIES": "vaswani_transformer relative_transformer", "SEEDS": "1 2", "MIRROR": ".", "SIZE": "base"}
    text = plan("compare.sh", cwd=tmp_path, **variables)
    assert text.count("fairseq-train data/tatoeba.fr-en/data-bin") == text.count(f"--mirror {tmp_path}\n") == 4
    assert text.splitlines()[-1].startswith("python -m user_dir.tools.compare --system vaswani_transformer ")
    assert option(text, "--max-update") == "2400" and text.count("--arch relative_transformer_base ") == 2
    text = plan("compare.sh", RECIPE="wmt14", SEEDS=1, GPUS=1, FAMILIES="vaswani_transformer transformer")
    assert option(text, "--max-update") == "100000" and "--output runs/families/" in text
    text = unbroken(bash(EXAMPLES / "ablations.sh", "convergence", "--dry-run").stdout)
    assert text.splitlines()[-1].startswith("python -m user_dir.tools.plot_training ")
    assert "--max-update 800 " in text and "--save-interval-updates 50 " in text and "--disable-val" not in text


def test_two_recipes_may_fetch_a_repository_at_once(tmp_path):
    run = {"check": True, "cwd": tmp_path, "capture_output": True}
    (tmp_path / "there").mkdir()
    git = ["git", "-C", "there", "--git-dir=.git"]  # none that a hook names in GIT_DIR
    subprocess.run([*git, "init", "-q"], **run)
    identity = ["-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, *identity, "commit", "-q", "--allow-empty", "-m", "x"], **run)
    defined = definitions("lock", "make_once")
    one = f"make_once {tmp_path}/here git clone --depth 1 file://{tmp_path}/there"
    done = bash("-euc", f"{defined}\n{one} & first=$!; {one} & wait $!; wait $first", env=os.environ, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "here.lock", "there"]
    assert [path.name for path in (tmp_path / "here").iterdir()] == [".git"]


def test_options_are_compared_again_after_the_wait_for_another_run(tmp_path):
    """It may have been trained with other ones meanwhile."""
    defined = definitions("fail", "options", "refuse_unwritable", "refuse_another_run", "open_run")
    meanwhile = "lock() { echo data --lr 1 > $1/options; touch $1/trained; }"
    settings = f"run={tmp_path} data=data training=(--lr 2) further=() host=0 dry_run="
    done = bash("-euc", f"{defined}\n{meanwhile}\n{settings}\nopen_run")
    assert done.returncode == 1 and "contains a run with other options" in done.stderr


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("data", ["data/é", "data/other"])
def test_a_run_has_its_data_and_options_in_every_locale(locale, data):
    """Else cron, which has none, would take it for a run with other options."""
    call = f"{definitions('options')}\ndata={data} training=(--save-dir é) further=()\noptions"
    assert bash("-uc", call, env={"LC_ALL": locale}).stdout == f"{data} --save-dir é "


def test_an_average_without_its_checkpoints_is_not_replaced(tmp_path):
    """All other files may have been removed to save space, or the model is another person's."""
    (tmp_path / "average.pt").touch()
    names = ("fail", "options", "begun", "has_checkpoints", "refuse_unwritable", "refuse_another_run")
    settings = f"run={tmp_path} data=data training=() further=() host=0 precision="
    call = f"{definitions(*names)}\n{settings}\nrefuse_another_run; begun"
    assert bash("-euc", call, env={"STEPS": "translate score"}).returncode == 0
    for steps in ("", "prepare train average"):
        done = bash("-euc", call, env={"STEPS": steps})
        assert done.returncode == 1 and "has an average.pt without its checkpoints" in done.stderr
    (tmp_path / "chosen").write_text("AVERAGE=5\n")
    done = bash("-euc", f"chosen=AVERAGE=3\n{call}", env={"STEPS": "translate score"})
    assert done.returncode == 1 and "was trained for AVERAGE=5" in done.stderr


def test_a_host_that_is_done_does_not_end_the_training_of_all(tmp_path):
    """The first one may have been killed while it wrote the last checkpoint."""
    (tmp_path / "checkpoint_last.pt").touch()
    (tmp_path / "train.1.log").write_text("| INFO | fairseq_cli.train | done training in 2.0 s\n")
    settings = f"run={tmp_path} data=data log=train.1.log host=1 dry_run= precision= precisions="
    settings += " launch=() running=() training=() further=()"
    call = f"{definitions('train')}\nrun() {{ echo $*; }}\n{settings}\ntrain"
    assert f"log_and_show {tmp_path}/train.1.log" in bash("-euc", call).stdout
    (tmp_path / "train.1.log").rename(tmp_path / "train.log")
    assert "log_and_show" not in bash("-euc", call).stdout


def test_a_folder_whose_name_is_a_pattern_has_checkpoints(tmp_path):
    (tmp_path / "a[1]").mkdir()
    call = f"{definitions('has_checkpoints')}\nrun='{tmp_path}/a[1]'\nhas_checkpoints"
    found = [bash("-uc", call).returncode]
    (tmp_path / "a[1]/checkpoint_last.pt").touch()
    assert [*found, bash("-uc", call).returncode] == [1, 0]


def test_a_reader_of_scores_that_goes_away_is_no_error_of_the_step(tmp_path):
    """Steps end without a word with the status of SIGPIPE."""
    call = f"{definitions('show_and_keep')}\n(show_and_keep kept yes) | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = bash("-o", "pipefail", "-c", call, cwd=tmp_path)
    assert (done.stdout, [*tmp_path.iterdir()]) == ("y\n141\n", [])


def test_a_command_that_fails_before_a_pipe_has_failed():
    """Without pipefail a training that ended with an error would be taken for one that is done."""
    scripts = sorted(EXAMPLES.glob("*.sh"))
    without = [path.name for path in scripts if "\nset -euo pipefail\n" not in path.read_text(encoding="utf-8")]
    assert without == ["compare.sh", "recipe.sh"]  # the one starts another, the other is sourced


def test_as_many_gpus_as_torch_can_use(tmp_path):
    settings = f"run={tmp_path} torch_version=2 older_gpus=; python() {{ echo 1; }}"
    calls = "for GPUS in 1 2; do (check_training) && echo $GPUS; done"
    done = bash("-uc", f"{definitions('fail', 'check_training')}\n{settings}\n{calls}")
    assert done.stdout == "1\n" and "GPUS is 2, and torch can use 1 on this host" in done.stderr


@pytest.mark.parametrize(
    "script, status",
    [
        ("exit 130", -signal.SIGINT),  # a step that has handled Ctrl-C ends a loop of the shell
        ("(sleep 0.1 &); sleep 0.3; exit 3", 3),  # an orphan that ends does not end the command
    ],
)
def test_the_status_is_that_of_the_command(script, status):
    words = [sys.executable, EXAMPLES / "shared/supervise.py", "bash", "-c", script]
    assert subprocess.run(words).returncode == status


def test_a_system_with_an_older_python_supervises(tmp_path):
    """As Ubuntu 22.04, where PYTHON has named another one only when .venv was made."""
    older = '[ $2 != -c ] || set -- -S -c "import sys; sys.version_info = (3, 10); $3"'
    older = executable(tmp_path / "python3", f'{older}\nexec "{sys.executable}" "$@"')
    (tmp_path / "script").write_text(f". '{EXAMPLES}/shared/supervised.sh'\necho ${{SUPERVISOR:-nobody}} $PPID\n")
    supervisor, parent = bash(tmp_path / "script", env={"PYTHON": str(older)}).stdout.split()
    assert supervisor == parent


def test_what_does_not_end_at_sigterm_is_killed():
    """It gets one SIGTERM: a second one may interrupt what it does at its end."""
    script = "import supervise; supervise.SECONDS = 0.5; supervise.main()"
    deaf = 'read -r process < <(trap "$heard" TERM; echo $BASHPID; while :; do sleep 0.1; done); echo $process'
    both = f"for heard in '' 'echo heard >&2'; do {deaf}; done"
    words = [sys.executable, "-c", script, "bash", "-c", both]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=EXAMPLES / "shared", **pipes) as supervised:
        processes = [int(supervised.stdout.readline()) for _ in range(2)]
        assert supervised.wait() == 0
        alive = [process for process in processes if not ended(process)]
        for process in alive:
            os.kill(process, signal.SIGKILL)
        said = supervised.stderr.read()
    assert not alive and said.count("heard\n") == 1


@pytest.mark.parametrize(
    "words, env, message",
    [
        (["--dropout=0.2"], {}, "--dropout: the rows of vaswani differ in it, and would become equal; omit it"),
        ([], {"SIZE": "base"}, "SIZE=base: the rows of vaswani are in proportion to the quickstart's model; omit it"),
        (["--dropout", "0.2"], {"ROWS": "D.smoothing-0", "SIZE": "base"}, None),
        ([], {"ROWS": "D.smoothing-0\nbig"}, None),
    ],
)
def test_rows_that_would_not_be_those_of_the_table_are_refused(words, env, message):
    done = bash(EXAMPLES / "ablations.sh", "vaswani", "--dry-run", *words, env=env)
    assert (done.stderr, done.returncode) == (f"ablations.sh: {message}\n" if message else "", int(bool(message)))


@pytest.mark.parametrize(
    "recipe, option, words",
    [
        ("quickstart.sh", "--help", ["From nothing to a scored translation", "MINUTES=7"]),
        ("quickstart.sh", "-h", ["From nothing to a scored translation"]),
        ("own-data.sh", "--help", ["Makes a model from two text files of your own", "PATIENCE=10"]),
        ("ablations.sh", "--help", ["Trains the rows of one of the papers' tables", "RECIPE=quickstart"]),
        ("compare.sh", "--help", ["Trains several families", "FAMILIES=(all)"]),
        ("recipe.sh", "--help", ["Sourced by ", "FAMILY=vaswani_transformer"]),
    ],
)
def test_help_is_the_comment_at_the_top(tmp_path, recipe, option, words):
    done = bash(EXAMPLES / recipe, option, env={"OUTPUT": str(tmp_path / "run")})
    assert done.returncode == 0 and done.stdout.startswith(words[0]) and words[-1] in done.stdout
    assert "set -e" not in done.stdout and done.stdout.count(words[0]) == 1 and not (tmp_path / "run").exists()


def test_settings_of_a_users_shell(tmp_path):
    """With CDPATH `cd` prints a folder, and with noclobber `>` refuses a file that is there."""
    (tmp_path / "settings").write_text("set -o noclobber\n")
    settings = {"CDPATH": ".:/tmp", "BASH_ENV": str(tmp_path / "settings"), "PYTHONSAFEPATH": "1", "typed": "mine"}
    settings["LOGLEVEL"] = "WARNING"
    for recipe in ("quickstart.sh", "multi30k.sh"):
        env = {"GPUS": "0"}
        plain, other = (bash(f"examples/{recipe}", "--dry-run", env=e, cwd=PROJECT) for e in (env, env | settings))
        assert other.returncode == 0 and other.stdout == plain.stdout
    show = "echo ${PYTHONSAFEPATH-none} ${LOGLEVEL-none} $(printenv PYTHONUTF8) $typed"
    script = f". '{EXAMPLES}/shared/supervised.sh'; echo x > settings; {show}"
    done = bash("-c", script, "x", "--dry-run", env=settings, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "none none 1 examples/x\n"), done.stderr


@pytest.mark.parametrize(
    "script", sorted([*EXAMPLES.rglob("*.sh"), *EXAMPLES.rglob("*.sbatch")]), ids=lambda path: path.name
)
def test_lines_are_as_short_as_those_of_python(script):
    assert not [line for line in script.read_text(encoding="utf-8").splitlines() if len(line) > 120]


@pytest.mark.parametrize("script", ["run.sh", "gpu.sh", "versions.sh"])
def test_help_of_the_tests_installs_nothing(tmp_path, script):
    done = bash(PROJECT / "tests" / script, "--help", env={"PATH": os.defpath}, cwd=tmp_path)
    assert done.returncode == 0 and f"tests/{script}" in done.stdout
    assert ("GPUS=1 tests/gpu.sh python examples/train.py" in done.stdout) == (script == "gpu.sh")  # else on CPUs
    assert done.stderr == "" and not any(tmp_path.iterdir())


def test_an_interrupted_report_of_a_gpu_ends_its_command(monkeypatch):
    communicate, processes = subprocess.Popen.communicate, []

    def interrupted(process, timeout=None):
        processes.append(process)
        if timeout:
            raise KeyboardInterrupt
        return communicate(process)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Commands(minutes=1).run("sleep", 20)
    assert processes[0].poll() == -signal.SIGKILL


SCRIPTS = ["examples/g2p.py prepare", "examples/sequences.py prepare", "examples/record.py begin"]


@pytest.mark.parametrize("usage", [*SCRIPTS, "data-prep/sample_treebank.py data/sample_trees"])
def test_help_of_scripts_is_no_error_and_an_option_no_folder(tmp_path, usage):
    words, pipes = [sys.executable, PROJECT / usage.split()[0]], {"capture_output": True, "text": True}
    asked, wrong = (subprocess.run([*words, option], cwd=tmp_path, **pipes) for option in ("--help", "--output"))
    assert asked.returncode == 0 and f"python {usage}" in asked.stdout and asked.stderr == ""
    assert wrong.returncode == 1 and wrong.stderr == asked.stdout and wrong.stdout == ""
    assert not [*tmp_path.iterdir()]
