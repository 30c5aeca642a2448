"""examples/compare.sh: every family with every seed, and one table at the end."""

import os
import re
import shutil
import sys

import pytest

from support import PROJECT, run

pytest.importorskip("matplotlib")

# Stands for quickstart.sh: notes how it was called and leaves what it would leave.
QUICKSTART = """
echo "$ARCH $OUTPUT $SOURCE-$TARGET $UPDATES $MINUTES $*" >> calls
mkdir -p "$OUTPUT" data/tatoeba.$SOURCE-$TARGET.$PAIRS/raw
seq 9 | sed 's/$/ little words stand here/' > data/tatoeba.$SOURCE-$TARGET.$PAIRS/raw/test.$TARGET
for i in $(seq 0 8); do
  printf 'H-%s\\t-1\\t%s little words stand .\\nD-%s\\t-1\\t%s little words stand.\\n' $i $i $i $i
done > "$OUTPUT/generate.log"
"""


def test_every_family_with_every_seed(tmp_path):
    examples = tmp_path / "examples"
    (examples / "install").mkdir(parents=True)
    shutil.copy(PROJECT / "examples/compare.sh", examples)
    (examples / "install/environment.sh").write_text(f"project={tmp_path}\n")
    (examples / "quickstart.sh").write_text(f"#!/bin/sh\n{QUICKSTART}")
    (examples / "quickstart.sh").chmod(0o755)
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    env = {"PYTHONPATH": path, "FAMILIES": "vaswani_transformer relative_transformer"}
    env |= {"SEEDS": "1 2", "PAIRS": "400", "UPDATES": "5"}
    done = run("bash", examples / "compare.sh", "--encoder-layers", "1", env=env)
    output = "runs/comparison.fr-en"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"{family}_tiny {output}/{family}.{seed} fr-en 5 6000 --seed {seed} --encoder-layers 1"
        for family in ("vaswani_transformer", "relative_transformer")
        for seed in (1, 2)
    ]
    text = (tmp_path / output / "comparison.md").read_text()
    assert text in done.stdout and (tmp_path / output / "comparison.png").is_file()
    assert re.search(r"^\| relative_transformer \| sacreBLEU \| \+0\.00 \| 1\.000 \|", text, re.MULTILINE)


@pytest.mark.slow
def test_on_the_corpus(tmp_path):
    sizes = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16".split()
    env = {"VIRTUAL_ENV": sys.prefix, "FAMILIES": "vaswani_transformer relative_transformer", "SEEDS": "1"}
    env |= {"PAIRS": "400", "UPDATES": "100", "OUTPUT": str(tmp_path)}
    done = run("bash", PROJECT / "examples/compare.sh", *sizes, env=env, ok=False)
    if "network" in done.stderr and done.returncode:
        pytest.skip(f"the corpus cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (tmp_path / "comparison.md").read_text() in done.stdout
    again = run("bash", PROJECT / "examples/compare.sh", *sizes, env=env)
    for file in ("trained", "average.pt", "translations.en"):
        assert again.stdout.count(f"{file} is there") == 2
