"""A recipe for real, on a tiny mirror: every step, going on where it stopped, several processes, what goes wrong."""

import importlib.util
import json
import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from user_dir.search.search_settings import FAIRSEQS

from support import PYTHON, assert_same_training, free_port, run

# The files that are made of a checkpoint.
TRANSLATED = ("average.pt", "generate.log", "translations.de", "score.txt", "run.json")


def test_every_step_and_again(recipe, tmp_path):
    first = recipe(STEPS="prepare train", ok=True)
    assert "\nupdate 30 of 30: loss " in first.stdout and not (tmp_path / "run/average.pt").exists()

    rest = recipe(ok=True)
    assert "run/trained is there" in rest.stdout and "update 30 of 30" not in rest.stdout
    assert len((tmp_path / "run/translations.de").read_text().splitlines()) == 11
    assert "BLEU of tokens" in (tmp_path / "run/score.txt").read_text()
    assert (tmp_path / "run/ctranslate2/model.bin").exists() == bool(importlib.util.find_spec("ctranslate2"))
    assert json.loads((tmp_path / "run/search.json").read_text()) == {**FAIRSEQS, "beam": 1, "max_len_b": 10}
    assert "Generate test with beam=1: BLEU4" in rest.stdout and rest.stdout.rstrip().endswith("prints it)")

    again = recipe()
    assert [again.stdout.count(f"run/{file} is there") for file in ("trained", "translations.de")] == [1, 2]

    exported = (tmp_path / "run/ctranslate2").exists()
    for file in ["ctranslate2"] * exported + ["translations.de"]:  # as if the export had been interrupted
        (tmp_path / "run" / file).rename(tmp_path / file)
    again = recipe()
    assert "run/average.pt is there" in again.stdout
    assert (tmp_path / "run/ctranslate2/model.bin").exists() == exported
    for file in (missing := [tmp_path / "run" / name for name in ("average.pt", "generate.log")]):
        file.unlink()
    assert recipe().returncode == 0 and all(file.exists() for file in missing)

    other = recipe(SEED=2)
    assert other.returncode == 1
    assert "a run with other options" in other.stderr and "OUTPUT=" in other.stderr
    (tmp_path / "file").touch()
    assert (other := recipe(OUTPUT=tmp_path / "file")).returncode == 1
    assert f"{tmp_path}/file is a file; name another" in other.stderr
    assert "contains a run with BATCH=" in (other := recipe(BATCH=777)).stderr and other.returncode == 1
    for chosen in ({"AVERAGE": 1}, {"CHOOSE": "loss"}):
        assert "was trained for AVERAGE=2;" in (other := recipe(**chosen)).stderr and other.returncode == 1


def test_texts_of_different_lengths_are_not_prepared(checkout, recipe, stand_in, mirror, tmp_path):
    stand_in("fairseq-train", "")  # which checks the options first
    shutil.copytree(mirror, tmp_path / "mirror")
    for name, text, part in (("train.de", "ein hund\n", "train"), ("valid.en", "", "valid")):
        shutil.rmtree(checkout / "data", ignore_errors=True)
        (tmp_path / "mirror" / name).write_text(text)
        done = recipe(MIRROR=tmp_path / "mirror", STEPS="prepare")
        assert done.returncode == 1 and f"{part}.en and {part}.de need as many lines" in done.stderr, done.stderr
        assert [path.name for path in (checkout / "data").iterdir()] == ["multi30k_published.en-de.smoke.lock"]
        shutil.copy(mirror / name, tmp_path / "mirror")


@pytest.mark.slow
def test_two_processes_and_two_hosts_equal_one_process(checkout, recipe, tmp_path):
    """For two processes the plan is pasted; the hosts are two recipes on this one."""
    options = ("--dropout", "0", "--autocast", "off", "--log-interval", "1")
    settings = {"UPDATES": 5, "MAX_TOKENS": 500}
    one = recipe(*options, **settings, STEPS="prepare train", OUTPUT=tmp_path / "one", ok=True)
    assert "1 x 2 x 500 = 1000" in one.stdout

    plan = recipe("--dry-run", *options, **settings, STEPS="prepare train", PROCESSES=2, OUTPUT=tmp_path / "two").stdout
    assert "2 x 1 x 500 = 1000" in plan
    run("bash", "-c", plan.partition("# to compare with")[0], cwd=checkout)

    meet = {"NODES": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    hosts = {**settings, **meet, "STEPS": "train", "OUTPUT": tmp_path / "hosts"}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda rank: recipe(*options, **hosts, NODE_RANK=rank, ok=True), (0, 1)))

    logs = {name: (tmp_path / name / "train.log").read_text() for name in ("one", "two", "hosts")}
    losses = {name: re.findall(r"train_inner .* loss=([\d.]+),", log) for name, log in logs.items()}
    assert len(losses["one"]) == 5 and losses["two"] == losses["hosts"] == losses["one"]
    for name in ("two", "hosts"):
        assert_same_training(tmp_path / name, tmp_path / "one")


def test_a_mistyped_option_is_found_before_the_preparation(checkout, recipe):
    done = recipe("--droput", "0.1", TARGET="fr")
    assert done.returncode == 1 and done.stderr.endswith("fairseq-train: error: unrecognized arguments: --droput 0.1\n")
    for option in ("--finetune-from-model", "--continue-once"):
        done = recipe(option, "runs/no/average.pt", TARGET="fr")
        assert f"{option}: there is no file runs/no/average.pt in " in done.stderr and done.returncode == 1
    assert not [*checkout.glob("data/*en-fr*")]


def test_a_process_that_dies_ends_the_others(recipe, stand_in, tmp_path):
    first = f"echo $$ > {tmp_path}/first; exec sleep 500"
    second = f"until [ -s {tmp_path}/first ]; do sleep .1; done; echo the reason; exit 3"
    stand_in("fairseq-train", f"if [ $RANK = 0 ]; then {first}; else {second}; fi")
    done = recipe("--autocast", "off", STEPS="train", PROCESSES=2)
    assert done.returncode == 1 and not (tmp_path / "run/trained").exists()
    assert "the reason\n" in done.stderr and "could not train" in done.stderr and "ChildFailedError" not in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "first").read_text()), 0)


def test_a_translation_that_fails_says_why(recipe, stand_in, tmp_path):
    stand_in("fairseq-generate", "echo the reason >&2; exit 1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/average.pt").touch()
    done = recipe(STEPS="translate")
    assert done.returncode == 1 and "the reason\n" in done.stderr and "could not translate" in done.stderr


def test_a_run_keeps_its_precision(recipe, stand_in, tmp_path):
    stand_in("fairseq-train", f'echo "$*" > {tmp_path}/options; touch {tmp_path}/run/checkpoint_last.pt')
    chosen = tmp_path / "run/precision"

    def train(*options):
        (tmp_path / "run/trained").unlink(missing_ok=True)
        done = recipe(*options, STEPS="train", ok=True)
        return (tmp_path / "options").read_text() + done.stdout

    said = train()
    began = chosen.read_text().strip()
    assert began in ("bf16", "off") and f"--autocast {began}\n" in said and "has been trained" not in said
    other = {"bf16": "off", "off": "bf16"}[began]
    chosen.write_text(f"{other}\n")  # as if it had begun on a machine of the other kind
    said = train()
    assert f"--autocast {other}\n" in said and f"run has been trained with --autocast {other}\n" in said
    said = train("--autocast", began)
    assert f"--autocast {began}\n" in said and f"with --autocast {other} so far, now with {began}\n" in said
    assert chosen.read_text().strip() == began


def test_other_options_after_a_training_that_did_not_begin(recipe, stand_in, tmp_path):
    """As after a misspelt one."""
    stand_in("fairseq-train", '[[ "$*" == *" --dropout "*" --dropout "* ]]')
    assert recipe("--droput", "0.2", "--autocast", "off", STEPS="train").returncode == 1
    assert (tmp_path / "run/failed.train.log").exists() and not (tmp_path / "run/train.log").exists()
    done = recipe("--dropout", "0.2", "--autocast", "off", STEPS="train")
    assert done.returncode == 0 and (tmp_path / "run/trained").exists(), done.stderr
    assert len((tmp_path / "run/starts.jsonl").read_text().splitlines()) == 1


def test_other_options_after_ctrl_c_before_the_first_checkpoint(recipe, stand_in, tmp_path):
    stand_in("fairseq-train", '[[ "$*" == *" --dropout 0.3 "*" --dropout "* ]] || exit 130')
    for _ in range(2):
        assert recipe("--autocast", "off", STEPS="train").returncode in (130, -signal.SIGINT)
        assert len((tmp_path / "run/starts.jsonl").read_text().splitlines()) == 1
    done = recipe("--dropout", "0.2", "--autocast", "off", STEPS="train")
    assert done.returncode == 0 and (tmp_path / "run/trained").exists(), done.stderr
    assert len((tmp_path / "run/starts.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "run/failed.train.log").exists()
    done = recipe("--dropout", "0.2", "--autocast", "bf16", STEPS="train")
    assert done.returncode == 1 and "run was trained with --autocast off; name another folder" in done.stderr


def test_other_hosts_after_a_try_with_other_options(recipe, stand_in, tmp_path):
    """It was ended before its first checkpoint, as by scancel; with Slurm all hosts begin to train at a time."""
    stand_in("fairseq-train", "")  # which checks the options first
    stand_in("torchrun", "")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/options").write_text("data --lr 1")
    hosts = {"NODES": 2, "MASTER_ADDR": "127.0.0.1"}
    for variables in ({"STEPS": "prepare"}, {"STEPS": "train", "NODE_RANK": 1}):
        done = recipe("--autocast", "off", **hosts, **variables)
        assert done.returncode == 0, done.stderr


def test_other_checkpoints_that_are_chosen_before_the_end(recipe, tmp_path):
    """Translations of the average are not scored for the best one."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoint_last.pt").touch()
    earlier = [tmp_path / "run" / name for name in TRANSLATED]
    for chosen, stay in (({}, True), ({}, True), ({"CHOOSE": "loss"}, False)):
        for file in earlier:
            file.touch()
        recipe("--autocast", "off", STEPS="average", **chosen)
        assert [file.exists() for file in earlier] == [stay] * len(earlier)


def test_a_training_that_has_ended_is_not_trained_again(recipe, stand_in, tmp_path):
    """As after a kill between its end and the mark. Translations of an earlier checkpoint are not scored."""
    said = "| INFO | fairseq_cli.train | done training in 2.0 s"
    stand_in("fairseq-train", f'echo x >> {tmp_path}/trained; echo "{said}"; echo KeyboardInterrupt')
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoint_last.pt").touch()
    earlier = [tmp_path / "run" / name for name in TRANSLATED]
    for _ in range(2):
        for file in earlier:
            file.touch()
        assert recipe("--autocast", "off", STEPS="train").returncode == 0
        (tmp_path / "run/trained").unlink()
        assert not any(file.exists() for file in earlier)
    assert (tmp_path / "trained").read_text() == "x\n"


def test_two_preparations_at_a_time(checkout, recipe, stand_in, tmp_path):
    """The second waits for the first and finds its work done."""
    data = checkout / "data/multi30k_published.en-de.smoke"
    shutil.rmtree(data, ignore_errors=True)
    copied = PYTHON.stand_ins() / "fairseq-preprocess"
    stand_in("fairseq-train", "")  # which checks the options first
    stand_in("fairseq-preprocess", f'echo called >> {tmp_path}/calls; sleep 1; exec {copied} "$@"')
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: recipe(STEPS="prepare"), range(2)))
    assert [done.returncode for done in both] == [0, 0], both
    assert (tmp_path / "calls").read_text() == "called\n" and not (tmp_path / "run").exists()
    assert any("waiting" in done.stderr for done in both)
    assert (data / "data-bin/test.en-de.de.idx").exists() and not (data.parent / f"{data.name}.partial").exists()


def test_two_runs_at_a_time(recipe, stand_in, tmp_path):
    """The second waits for the first, says so in one line, and finds its work done."""
    stand_in("fairseq-train", f"echo called >> {tmp_path}/calls; sleep 2")
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: recipe("--autocast", "off", STEPS="train"), range(2)))
    assert [done.returncode for done in both] == [0, 0], both
    first, second = sorted(both, key=lambda done: len(done.stderr))
    assert first.stderr == "" and "run/trained is there" not in first.stdout
    holder = re.fullmatch(rf"{tmp_path}/run: process (\d+) on \S+ \((.*)\) writes there; waiting .*\n", second.stderr)
    assert holder and "examples/multi30k_published.sh --clip-norm" in holder[2]
    assert "run/trained is there" in second.stdout and (tmp_path / "calls").read_text() == "called\n"


def test_missing_files_are_named(checkout, recipe, stand_in, tmp_path):
    stand_in("fairseq-train", "")  # which checks the options first
    shutil.rmtree(checkout / "data", ignore_errors=True)
    missing = recipe(MIRROR=tmp_path)
    assert missing.returncode == 1
    assert f"{tmp_path}/train.en" in missing.stderr and "MIRROR=FOLDER" not in missing.stderr
    assert not (tmp_path / "run").exists() and not [path for path in (checkout / "data").iterdir() if path.is_dir()]
    env = {"GPUS": "0", "MIRROR": str(tmp_path), "OUTPUT": str(tmp_path / "run")}
    multi30k = run("bash", checkout / "examples/multi30k.sh", cwd=checkout, env=env, ok=False)
    assert multi30k.returncode == 1 and not (tmp_path / "run").exists()
    assert "has no file train.en.gz; put it there (https://raw.githubusercontent.com/multi30k/" in multi30k.stderr
    del env["MIRROR"]
    env |= {"https_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}  # nothing listens there
    env["XDG_CACHE_HOME"] = str(tmp_path)
    multi30k = run("bash", checkout / "examples/multi30k.sh", cwd=checkout, env=env, ok=False)
    assert multi30k.returncode == 1 and "MIRROR=FOLDER" in multi30k.stderr and not (tmp_path / "run").exists()
