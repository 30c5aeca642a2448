"""tests/mutants.toml, whose faults are made by hand only: each can be made, and its test is there."""

from mutants import PROJECT, read_mutants


def test_every_fault_can_be_made_and_has_its_test():
    mutants = read_mutants([])
    for mutant in mutants:
        assert (PROJECT / mutant.file).read_text().count(mutant.line) == 1, mutant
        file, _, function = mutant.test.partition("::")
        assert (f"def {function}(" if function else "def test_") in (PROJECT / file).read_text(), mutant
    assert f"{len(mutants)} small faults" in (PROJECT / "tests/README.md").read_text()
