"""The recipes' plans: possible as the pages have them, readable, for any number of processes and hosts."""

import os
import re

import pytest
from unit.examples.support import EXAMPLES, bash, copied, option, plan, steps_of

from user_dir.families import FAMILIES

from support import PROJECT, blocks_of, executable


def test_the_commands_on_the_pages_are_possible():
    """Those of recipes in blocks of their own, planned as they stand there."""
    planned = []
    for page in [*EXAMPLES.glob("*.md"), PROJECT / "README.md", PROJECT / "user_dir/tools/README.md"]:
        text = re.sub(r" *\\\n *", " ", "".join(blocks_of(page)))
        for line in re.findall(r"^(?:[A-Z_]+=(?:\S+|\"[^\"]*\") )*examples/\w+\.sh\b[^#\n]*", text, re.M):
            done = bash("-c", re.sub(r"(MIRROR|TREEBANK)=\S+", r"\1=.", line.rstrip()) + " --dry-run", cwd=PROJECT)
            assert done.returncode == 0 and done.stdout, (page, line, done.stderr)
            planned.append(line)
    assert len(planned) > 20


TWO_HOSTS = {"NODES": 2, "MASTER_ADDR": "host1"}


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"GPUS": 1}, 1),
        ({"GPUS": 1, **TWO_HOSTS}, 1),
        ({"GPUS": 4, **TWO_HOSTS}, 4),
        ({"GPUS": None, "CUDA_VISIBLE_DEVICES": "5"}, 1),
        ({"GPUS": None, "CUDA_VISIBLE_DEVICES": "0,2,GPU-1f"}, 3),
        ({"GPUS": None, "CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"GPUS": None, "CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"GPUS": 0, **TWO_HOSTS}, 0),
        ({"GPUS": 0, "PROCESSES": 3, **TWO_HOSTS}, 0),
    ],
)
def test_fairseq_takes_as_many_processes_as_asked(variables, gpus, monkeypatch):
    """On a host with eight GPUs, in the environment that torchrun makes for the last of the processes."""
    from fairseq.dataclass.configs import DistributedTrainingConfig
    from fairseq.distributed import utils

    text = plan("wmt14.sh", **variables)
    processes, nodes = variables.get("PROCESSES", gpus or 1), variables.get("NODES", 1)
    workers = processes * nodes
    assert option(text, "--max-tokens-valid") == "4096"
    assert f": {workers} x " in text and option(text, "--distributed-world-size") == str(workers)
    for word in ("--cpu", "MALLOC_ARENA_MAX=1", "export CUDA_VISIBLE_DEVICES=\n"):
        assert (word in text) == (gpus == 0)
    assert ("torchrun" in text) == (workers > 1)
    if gpus == 0 and processes > 1:  # they share the cores
        cores = int(bash("-c", ". examples/install/cores.sh; cores", cwd=PROJECT).stdout)
        assert f" OMP_NUM_THREADS={max(1, cores // processes)} " in text
    if workers > 1:
        assert f"--nnodes {nodes} --node-rank 0 --nproc-per-node {processes} " in text
        made = {"MASTER_ADDR": "host1", "MASTER_PORT": 1, "WORLD_SIZE": workers, "RANK": workers - 1}
        for name, value in made.items():
            monkeypatch.setenv(name, str(value))
    given = re.search(r"--distributed-init-method (\S+)", text)
    cfg = DistributedTrainingConfig(
        distributed_world_size=workers,
        distributed_init_method=given and given[1],
        distributed_no_spawn="--distributed-no-spawn" in text,
    )
    cfg.tpu = False
    monkeypatch.setattr(utils.torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(utils.torch.cuda, "set_device", lambda device: None)
    utils.infer_init_method(cfg)
    assert cfg.distributed_world_size == workers
    assert cfg.distributed_init_method == (None if workers == 1 else "env://")
    assert cfg.distributed_no_spawn == (workers > 1)
    assert gpus == 0 or cfg.distributed_rank == workers - 1


def test_several_processes_have_the_batches_of_one_as_the_page_says():
    page = (PROJECT / "examples/README.md").read_text(encoding="utf-8")
    said = r"`PROCESSES=(\d) examples/(\S+)`\s+trains as `MAX_TOKENS=(\d+) "
    several, recipe, tokens = re.search(said, page).groups()
    many, one, usual = (plan(recipe, GPUS=0, **given) for given in ({"PROCESSES": several}, {"MAX_TOKENS": tokens}, {}))
    batches = [(option(text, "--max-tokens"), option(text, "--update-freq")) for text in (many, one, usual)]
    assert batches == [(tokens, "1"), (tokens, several), (f"{int(several) * int(tokens)}", "1")]


def test_runs_on_one_host_do_not_meet_at_one_port():
    ports = {option(plan("wmt14.sh", GPUS=2, SEED=seed), "--master-port") for seed in range(1, 6)}
    assert len(ports) == 5 and all(20000 <= int(port) < 32000 for port in ports)
    assert option(plan("wmt14.sh", GPUS=2, MASTER_ADDR="other"), "--master-addr") == "127.0.0.1"
    # Hosts may name folders differently.
    assert option(plan("wmt14.sh", GPUS=2, **TWO_HOSTS), "--master-port") == "29500"


def test_a_plan_is_readable_and_can_be_pasted(tmp_path):
    """Every word arrives as it was given, and no line is longer than a hundred columns unless one word is."""
    odd = ["--user-dir", "a 'b' \"c\" $d \\ *", "--empty", "", "--last"]
    env = {"GPUS": "2", "OUTPUT": f"{tmp_path}/a run", "STEPS": "train"}
    functions, _, train = bash(EXAMPLES / "multi30k.sh", "--dry-run", *odd, env=env).stdout.partition("# train\n")
    train = train.partition("\n# to compare with")[0]
    assert all(len(line) <= 100 or line.count(" ") <= 7 for line in train.splitlines())
    executable(tmp_path / "torchrun", "printf '%s\\n' \"$@\"")
    python = 'python() { case "$2" in *precision) echo off ;; *) cat ;; esac; }'
    env["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run/train.log").write_text("earlier\n")  # of a training that continues
    pasted = bash("-c", f"{python}\n{functions}\n{train}", env=env, cwd=tmp_path)
    words = pasted.stdout.splitlines()
    assert words[-7:] == [*odd, "--autocast", "off"] and words[words.index("--save-dir") + 1] == f"{tmp_path}/a run"
    assert (tmp_path / "a run/train.log").read_text() == f"earlier\n{pasted.stdout}"


def test_a_setting_that_is_missing_is_named(tmp_path):
    examples = copied(tmp_path)
    recipe = (examples / "multi30k.sh").read_text()
    for name in ("corpus", "preparation", "training", "batch", "rate", "warmup", "checkpoints", "generation"):
        without = re.sub(rf"\b{name}=(\([^)]*\)|\S+)", "", recipe)
        assert without != recipe
        (examples / "mine.sh").write_text(without)
        message = plan("mine.sh", examples=examples, ok=False)
        assert message == f"mine.sh: the recipe does not set {name}; see the list in examples/shared/steps.sh\n"


def test_a_family_that_is_added_needs_no_shell(tmp_path):
    examples = copied(tmp_path)
    table = tmp_path / "user_dir/families.py"
    row = 'FAMILIES["new_transformer"] = Family({}, big={}, updates=(12, 34), averaged=(5, 6))\n'
    table.write_text(table.read_text().replace("def main", f"{row}def main"))
    text = plan("wmt14.sh", FAMILY="new_transformer", SIZE="big", examples=examples)
    assert option(text, "--max-update") == "34" and option(text, "--last") == "6"
    message = plan("wmt14.sh", FAMILY="other", examples=examples, ok=False)
    assert message.startswith("wmt14.sh: FAMILY=other") and ", new_transformer, transformer, and the" in message
    python = 'python() { [ "$1" = -m ] || command python "$@"; }\n'  # no comparison at the end
    (examples / "install/environment.sh").write_text(f"project={tmp_path}\n{python}")
    (examples / "quickstart.sh").write_text("#!/bin/sh\necho $ARCH\n")
    done = bash(examples / "compare.sh")  # with three seeds
    trained = [line for line in done.stdout.splitlines() if not line.startswith("# ====")]
    assert trained == [f"{family}_tiny" for family in (*FAMILIES, "new_transformer") for _ in range(3)]


@pytest.mark.parametrize("gpus", ["0", "1"])
def test_the_quickstart_trains_on_cpus_if_asked(gpus):
    assert ("--cpu " in plan("quickstart.sh", GPUS=gpus)) == (gpus == "0")


def test_the_quickstart_is_a_recipe(tmp_path):
    examples = copied(tmp_path)
    variables = {"MINUTES": 0.6, "UPDATES": 30, "FAMILY": "relative_transformer"}
    text = plan("quickstart.sh", "--seed", "7", examples=examples, **variables)
    assert steps_of(text) == ["prepare", "train", "average", "translate", "draw", "score", "record"]
    assert "record.py" not in text  # it reads what only the recipe writes, and would fail where the plan is pasted
    assert option(text, "--stop-time-hours") == "0.01" and option(text, "--log-interval") == "7"
    assert option(text, "--last") == "4" and "--seed 7\n" in text and "--arch relative_transformer_tiny " in text
    assert "--disable-validation" in text and " sacrebleu data/tatoeba.fr-en/raw/test.en --input " in text
    assert " --seed 3 " in plan("quickstart.sh", examples=examples, SEED=3)
    bible = {"CORPUS": "bible", "SOURCE": "de"}
    text = plan("quickstart.sh", "--distributed-world-size", "2", examples=examples, VALIDATE=40, **bible)
    assert "--disable-validation" not in text and option(text, "--save-interval-updates") == "40"
    assert "prepare.py bible --source-lang de " in text and "--output data/bible.de-en " in text
    assert text.count("--beam 4 --lenpen 1 --max-len-a 1 --max-len-b 50") == 2
    few = plan("quickstart.sh", examples=examples, PAIRS=300)  # not in place of the whole corpus
    assert "--output data/tatoeba.fr-en.300 " in few and "--max-pairs 300\n" in few
    assert re.findall(r"--distributed-world-size (\d)", text) == ["1", "2"]  # the last word counts
    assert not (tmp_path / "runs").exists() and not (tmp_path / "data").exists()


@pytest.mark.parametrize("recipe", ["wmt14.sh", "quickstart.sh", "multilingual.sh"])
def test_a_mirror_may_be_given_from_where_one_stands(recipe, tmp_path):
    commands = re.findall("^python data-prep/prepare.py .*", plan(recipe, MIRROR=".", cwd=tmp_path), re.MULTILINE)
    for command in commands:
        assert (f"--mirror {tmp_path}" in command) == ("--train " not in command)
    assert commands


def test_a_reader_that_goes_away_ends_a_plan():
    command = "set -o pipefail; examples/wmt14.sh --dry-run | grep -m 1 '^# prepare'"
    done = bash("-c", command, env={"GPUS": "1"}, cwd=PROJECT)
    assert done.stdout == "# prepare\n" and done.stderr == ""


def test_other_hosts_only_train():
    text = plan("wmt14.sh", NODES=2, NODE_RANK=1, GPUS=8, MASTER_ADDR="first", MASTER_PORT=1234)
    assert steps_of(text) == ["train", "to compare with"]
    assert "--node-rank 1" in text and "--master-addr first --master-port 1234" in text and "train.1.log" in text
    assert "\nawait_precision runs/" in text  # that of the first host


def test_steps_in_lines_of_their_own():
    """A check that takes them and a plan without any would do nothing, and end as if all were done."""
    for between in ("\n", "\t", "\n\t"):
        text = plan("multi30k.sh", STEPS=f"prepare{between}train")
        assert steps_of(text) == ["prepare", "train", "to compare with"]


def test_slurm(tmp_path):
    """The sbatch file runs the recipe's steps, training once on each host."""
    executable(tmp_path / "scontrol", "printf 'host7\\nhost8\\n'")
    each = 'for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done'
    executable(tmp_path / "srun", f'echo "srun $1 $2"\nshift 2\n{each}')
    env = {"SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_NODELIST": "host[7-8]"}
    env |= {"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "12"}
    env |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAMILY": "weighted_transformer"}
    done = bash(EXAMPLES / "slurm.sbatch", EXAMPLES / "wmt14.sh", "--dry-run", env=env)
    assert done.returncode == 0, done.stderr
    steps = [step for step in steps_of(done.stdout) if step != "to compare with"]
    assert steps == ["prepare", "train", "train", "average", "translate", "score", "record"]
    assert "\nsrun --kill-on-bad-exit=1 --cpus-per-task=12\n" in done.stdout
    assert re.findall(r"--node-rank (\d)", done.stdout) == ["0", "1"]
    assert done.stdout.count("--master-addr host7") == done.stdout.count("--master-port 20005") == 2
    assert "--max-tokens 3125" in done.stdout


def test_slurms_script_is_for_slurm():
    done = bash(EXAMPLES / "slurm.sbatch", "examples/wmt14.sh")
    assert done.returncode == 1 and "sbatch examples/slurm.sbatch examples/wmt14.sh" in done.stderr
