"""The parts of sequences.sh that are not commands of fairseq:

    python examples/sequences.py prepare TASK [FOLDER] RAW  # {train,valid,test}.{input,output}; FOLDER: SCAN
    python examples/sequences.py score RAW TRANSLATIONS     # exact match; outputs longer than in training separately

The generated tasks are the same on every machine. Their test set has 1,000 inputs of up to 16 letters, and 1,000 longer
ones. The training set is drawn last, without repeats: no input of one letter is left for it.
"""

import pathlib
import random
import sys

from packed import compared, find, lines_of, write_lines

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TRAINED, LONGER = range(1, 17), range(17, 25)  # letters in an input
TRAINING, HELD_OUT = 20_000, 1_000  # pairs
SCAN = {"scan_length": ("length_split", "length"), "scan_jump": ("add_prim_split", "addprim_jump")}

Pair = tuple[str, str]


def intersperse(letters: list[str]) -> tuple[list[str], list[str]]:
    half = len(letters) // 2
    first, second = letters[:half], letters[half : 2 * half]
    return [*first, "|", *second], [letter for both in zip(first, second) for letter in both]


TASKS = {
    "reverse": lambda letters: (letters, letters[::-1]),
    "duplicate": lambda letters: (letters, letters + letters),
    "intersperse": intersperse,
}


def generate(task: str) -> dict[str, list[Pair]]:
    """The pairs of each part, without repeated inputs."""
    source = random.Random(f"sequences {task}")
    seen, parts = set(), {"train": [], "valid": [], "test": []}
    for part, lengths, count in (
        ("test", TRAINED, HELD_OUT),
        ("test", LONGER, HELD_OUT),
        ("valid", TRAINED, HELD_OUT),
        ("train", TRAINED, TRAINING),
    ):
        wanted = len(parts[part]) + count
        while len(parts[part]) < wanted:
            length = source.choice(lengths)
            if task == "intersperse":
                length += length % 2
            given, right = (" ".join(words) for words in TASKS[task](source.choices(LETTERS, k=length)))
            if given not in seen:
                seen.add(given)
                parts[part].append((given, right))
    return parts


def read_scan(folder: pathlib.Path, task: str) -> dict[str, list[Pair]]:
    """The pairs of a split; the validation set is HELD_OUT of its training pairs."""
    split, name = SCAN[task]
    parts = {}
    for part in ("train", "test"):
        names = (f"{name}.{part}", f"{split}/tasks_{part}_{name}.txt")
        if not (path := find(folder, *names)):
            sys.exit(f"sequences.py: {folder} has none of {', '.join(names)}: name a copy of SCAN's repository")
        lines = [line.strip().removeprefix("IN: ").split(" OUT: ") for line in lines_of(path)]
        for number, line in enumerate(lines, 1):
            if len(line) != 2:
                sys.exit(f"sequences.py: {path}, line {number} is not IN: … OUT: …: fetch the file again")
        parts[part] = [tuple(line) for line in lines]
    if len(parts["train"]) <= HELD_OUT:
        sys.exit(f"sequences.py: {path.parent} has {len(parts['train'])} training pairs: fetch SCAN again")
    random.Random(task).shuffle(parts["train"])
    parts["valid"], parts["train"] = parts["train"][:HELD_OUT], parts["train"][HELD_OUT:]
    return parts


def write(parts: dict[str, list[Pair]], raw: str) -> None:
    for part, pairs in parts.items():
        for side, lines in zip(("input", "output"), zip(*pairs)):
            write_lines(pathlib.Path(raw, f"{part}.{side}"), lines)


def percentage(right: list[bool]) -> str:
    return f"{100 * sum(right) / len(right):.1f}" if right else "none"


def score(raw: str, translations: str) -> None:
    longest = max(len(line.split()) for line in lines_of(pathlib.Path(raw, "train.output")))
    ours = compared(pathlib.Path(raw, "test.output"), translations)
    within = [good for right, good in ours if len(right.split()) <= longest]
    longer = [good for right, good in ours if len(right.split()) > longest]
    print("| run | exact match | longer outputs |\n| --- | ---: | ---: |")
    print(f"| {translations} | {percentage(within)} | {percentage(longer)} |")
    print(f"\n- exact match: `% of {len(within)} outputs of up to {longest} words, right as a whole`")
    print(f"- longer outputs: `% of {len(longer)} outputs of more than {longest} words, right as a whole`")


if __name__ == "__main__":
    match sys.argv[1:]:
        case "prepare", task, raw if task in TASKS:
            write(generate(task), raw)
        case "prepare", task, folder, raw if task in SCAN:
            write(read_scan(pathlib.Path(folder), task), raw)
        case "score", raw, translations:
            score(raw, translations)
        case ["-h" | "--help"]:
            print(__doc__)
        case _:
            sys.exit(__doc__)
