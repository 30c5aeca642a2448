"""examples/compare.sh and ablations.sh: every family or row with every seed, and one table at the end."""

import os
import re
import shutil
import sys

import pytest

from user_dir.families import FAMILIES

from support import PROJECT, executable, run

# Stands for quickstart.sh: notes how it was called and leaves what it would leave.
QUICKSTART = """
echo "$ARCH $OUTPUT $SOURCE-$TARGET $UPDATES $MINUTES $*" >> calls
mkdir -p "$OUTPUT" data/tatoeba.$SOURCE-$TARGET.$PAIRS/raw
seq 9 | sed 's/$/ little words stand here/' > data/tatoeba.$SOURCE-$TARGET.$PAIRS/raw/test.$TARGET
for i in $(seq 0 8); do
  printf 'H-%s\\t-1\\t%s little words stand .\\nD-%s\\t-1\\t%s little words stand.\\n' $i $i $i $i
done > "$OUTPUT/generate.log"
if [ -n "${VALIDATE:-}" ]; then
  printf '{"epoch": 1, "valid_loss": "%s", "valid_num_updates": "%s"}\n' 9 $VALIDATE 7 9 > "$OUTPUT/train.log"
fi
"""


def compare(tmp_path, script, *options, **variables):
    """The finished script, in a project in which nothing is trained."""
    examples = tmp_path / "examples"
    (examples / "install").mkdir(parents=True)
    (tmp_path / "user_dir").symlink_to(PROJECT / "user_dir")
    for name in ("compare.sh", "ablations.sh"):
        shutil.copy(PROJECT / "examples" / name, examples)
    (examples / "shared").symlink_to(PROJECT / "examples/shared")
    (examples / "install/environment.sh").write_text(f"project={tmp_path}\n")
    executable(examples / "quickstart.sh", QUICKSTART)
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    env = {"PYTHONPATH": path, "SEEDS": "1 2", "PAIRS": "400", "UPDATES": "5", **variables}
    return run("bash", examples / script, *options, env=env)


def test_every_family_with_every_seed(tmp_path):
    families = "vaswani_transformer relative_transformer"
    done = compare(tmp_path, "compare.sh", "--encoder-layers", "1", FAMILIES=families)
    output = "runs/comparison.fr-en"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"{family}_tiny {output}/{family}.{seed} fr-en 5 6000 --seed {seed} --encoder-layers 1"
        for family in ("vaswani_transformer", "relative_transformer")
        for seed in (1, 2)
    ]
    text = (tmp_path / output / "comparison.md").read_text()
    assert text in done.stdout and (tmp_path / output / "comparison.png").is_file()
    assert re.search(r"^\| relative_transformer \| sacreBLEU \| \+0\.00 \| – \| 1\.000 \|", text, re.MULTILINE)


def test_rows_of_a_table(tmp_path):
    """Those asked for and the table's first; each with its own options, and with what the paper printed."""
    done = compare(tmp_path, "ablations.sh", "vaswani", "--dropout", "0", ROWS="D.smoothing-0 D.smoothing-0.2")
    rows = {"base": "", "D.smoothing-0": "--label-smoothing 0.0 ", "D.smoothing-0.2": "--label-smoothing 0.2 "}
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"vaswani_transformer_tiny runs/vaswani/{row}.{seed} fr-en 5 6000 {options}--seed {seed} --dropout 0"
        for row, options in rows.items()
        for seed in (1, 2)
    ]
    text = (tmp_path / "runs/vaswani/comparison.md").read_text()
    assert text in done.stdout and "| D.smoothing-0 (paper, newstest2013: 25.3) | sacreBLEU | +0.00 |" in text


def test_convergence(tmp_path):
    done = compare(tmp_path, "ablations.sh", "convergence", SEEDS="1", VALIDATE="5")
    lines = [f"| {family} | 9 | " for family in FAMILIES]
    assert all(line in done.stdout for line in lines) and "| updates to validation loss 7 |" in done.stdout
    assert (tmp_path / "runs/convergence/convergence.png").exists()


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
    assert again.stdout.count("trained is there") == 2
    assert again.stdout.count("translations.en is there") == 4  # no average is made, and nothing translated
