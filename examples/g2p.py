"""Letters to sounds, the parts of g2p.sh that are not commands of fairseq:

    python examples/g2p.py prepare FOLDER SOURCE [PAIRS] RAW      # letters and sounds, separated by spaces
    python examples/g2p.py score RAW TRANSLATIONS                 # word error rate, compared with the published output

The published output has the correct sounds and its own, in another order and without the words. It is paired with ours
by the correct sounds. Among words that sound alike, its correct outputs are paired with our correct ones, so that the
fewest words differ, and p is the smallest possible.
"""

import collections
import pathlib
import sys

from packed import compared, find, lines_of, write_lines

Pairs = list[tuple[str, str]]


def read(path: pathlib.Path) -> Pairs:
    lines = [line.split("\t") for line in lines_of(path)]
    for number, line in enumerate(lines, 1):
        if len(line) != 2 or not all(map(str.strip, line)):
            sys.exit(f"g2p.py: {path}, line {number} is not a word and its sounds, separated by a tab: fetch it again")
    return [(" ".join(left.split()), " ".join(right.split())) for left, right in lines]


def prepare(folder: str, language: str, raw: str, most: int | None = None) -> None:
    words, target = pathlib.Path(folder), pathlib.Path(raw)
    for part in ("train", "dev", "test"):
        names = f"{language}.{part}.tsv", f"data/{language}_{part}.tsv"  # of a folder of words, of their repository
        if not (path := find(words, *names)):
            sys.exit(f"g2p.py: {words / names[0]} is missing, and so are {names[0]}.gz and {names[1]}: add one of them")
        pairs = read(path)[:most]
        name = "valid" if part == "dev" else part
        write_lines(target / f"{name}.letters", [" ".join(word) for word, _ in pairs])
        write_lines(target / f"{name}.sounds", [sounds for _, sounds in pairs])
    if published := find(words, f"{language}.test.published-output.tsv", f"results/g2p/{language}/test.tsv"):
        write_lines(target / "published.tsv", ["\t".join(pair) for pair in read(published)])


def discordant(ours: list[tuple[str, bool]], theirs: Pairs) -> tuple[int, int]:
    """The numbers of words that only we, and only they, have right; `ours` are as from `compared`.

    Raises:
        SystemExit: if theirs are for other words
    """
    # Theirs with <<unk>>, a sound that their dictionary lacks, are always wrong.
    theirs = [pair for pair in theirs if "<<unk>>" not in pair[0]]
    if collections.Counter(sounds for sounds, _ in theirs) - collections.Counter(sounds for sounds, _ in ours):
        sys.exit("g2p.py: the published output has other words than the test set: fetch both again")
    more_of_ours = collections.Counter(sounds for sounds, good in ours if good)
    more_of_ours.subtract(sounds for sounds, given in theirs if given == sounds)
    return (+more_of_ours).total(), (-more_of_ours).total()


def score(raw: str, translations: str) -> None:
    ours = compared(f"{raw}/test.sounds", translations)
    columns = {"word error rate": f"{100 * (1 - sum(good for _, good in ours) / len(ours)):.2f}"}
    signatures = [f"- word error rate: `% of {len(ours)} words whose sounds are not all right`"]
    published = pathlib.Path(raw, "published.tsv")
    if published.exists() and len(pairs := read(published)) == len(ours):
        from scipy.stats import binomtest  # takes a second to import

        wrong = sum(one != other for one, other in pairs)
        better, worse = discordant(ours, pairs)
        p = binomtest(better, better + worse).pvalue if better + worse else 1  # McNemar's exact test
        columns["published output"] = f"{100 * wrong / len(pairs):.2f}"
        columns["sign test"] = f"{better} better, {worse} worse, p {p:.2g}"
        signatures.append("- published output: `word error rate, counted again`")
        signatures.append("- sign test: `exact, two-sided, by word against the published output`")
    for line in (["run", *columns], ["---", *["---:"] * len(columns)], [translations, *columns.values()]):
        print(f"| {' | '.join(line)} |")
    print("", *signatures, sep="\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case "prepare", folder, source, *pairs, raw if len(pairs) < 2:
            prepare(folder, source, raw, *map(int, pairs))
        case "score", raw, translations:
            score(raw, translations)
        case ["-h" | "--help"]:
            print(__doc__)
        case _:
            sys.exit(__doc__)
