"""Parsing through the commands: a treebank is prepared, a small model learns some of its grammar, parses are scored."""

import re

import pytest
import sample_treebank

from support import PROJECT, TRAINING, run

DATA_PREP = PROJECT / "data-prep"


def percent(printed):
    """Recall, precision, F1 and exact trees of score_parses's table, and what it says of repairs."""
    *scores, repairs = [cell.strip() for cell in printed.splitlines()[2].split("|")[2:-1]]
    return *map(float, scores), repairs


@pytest.mark.slow
def test_a_grammar_is_learned(command, tmp_path):
    trees = sample_treebank.trees(4000)
    short = [tree for tree in trees if tree.count("(") <= 22]
    assert len(short) > 700
    for part, some in (("train", short[100:]), ("valid", short[:50]), ("test", short[50:100])):
        (tmp_path / f"{part}.mrg").write_text("".join(some))
    parts = [word for part in ("train", "valid", "test") for word in (f"--{part}", tmp_path / f"{part}.mrg")]
    sizes = ["--bpe-operations", 300, "--workers", 1]
    run("python", DATA_PREP / "treebank.py", *parts, "--output", tmp_path / "data", *sizes)
    data, raw = tmp_path / "data/data-bin", tmp_path / "data/raw"
    options = ["--source-lang", "words", "--target-lang", "brackets"]
    places = ["--user-dir", PROJECT / "user_dir", "--save-dir", tmp_path / "run", "--arch", "vaswani_transformer_tiny"]
    sizes = [word for word in TRAINING if word != "--share-all-embeddings"]
    command("fairseq-train", data, *options, *places, *sizes, "--max-update", 600, "--disable-validation")
    search = ["--beam", 4, "--max-len-a", 1, "--max-len-b", 300, "--required-batch-size-multiple", 1, "--remove-bpe"]
    places = ["--user-dir", PROJECT / "user_dir", "--path", tmp_path / "run/checkpoint_last.pt"]
    log = tmp_path / "generate.log"
    log.write_text(command("fairseq-generate", data, *places, *options, *search).stdout)
    gold, output = ["--gold", raw / "test.brackets"], tmp_path / "trees.mrg"
    score = ["python", "-m", "user_dir.tools.score_parses", log, *gold]
    printed = command(*score, "--words", raw / "test.words", "--output", output).stdout
    recall, precision, f1, exact, repairs = percent(printed)
    assert min(recall, precision) <= f1 <= max(recall, precision) and f1 > 80 and repairs.endswith(" of 50")
    assert len(output.read_text().splitlines()) == 50


@pytest.mark.slow
def test_every_step_of_the_recipe(checkout, tmp_path):
    variables = {"SMOKE": "1", "GPUS": "0", "UPDATES": "3", "OUTPUT": str(tmp_path)}
    done = run("bash", checkout / "examples/parsing.sh", "--num-workers", "0", cwd=checkout, env=variables)
    assert done.stdout.rstrip().endswith("92.1")
    *scores, repairs = percent((tmp_path / "score.txt").read_text())
    assert all(0 <= score <= 100 for score in scores) and repairs.endswith(" of 400")
    words = (checkout / "data/sample_trees.words-brackets.smoke/raw/test.words").read_text().splitlines()
    trees = (tmp_path / "trees.mrg").read_text().splitlines()
    assert [re.findall(r" ([^ ()]+)\)", tree) for tree in trees] == [line.split() for line in words]
