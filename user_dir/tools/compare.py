"""Compares systems, each trained with one or more seeds: scores, significance, and scores by sentence length.

    nmt-compare --reference data/tatoeba.fr-en/raw/test.en --output runs/comparison \\
        --system vaswani runs/vaswani.seed*/generate.log --system relative runs/relative.seed*/generate.log

Writes OUTPUT.md (printed too) and OUTPUT.png. Scores are those of nmt-score: mean ± standard deviation (n - 1) over the
seeds. Chance enters a comparison in two ways, and each has p-values of its own:

p, other sentences   the probability of such a difference on other test sentences if both were equally good: paired
                     bootstrap (Koehn 2004) or approximate randomisation, by sacrebleu. A sentence is drawn with all
                     seeds' translations, whose n-gram counts are added up: repeats of one sentence are not independent
                     observations.
p, other seeds       the same for other seeds: Welch's t-test over the seeds' scores; it needs two seeds of each.
paired               the same by the paired t-test, where both have the same seeds (the number after
                     `seed` in a file's path, else the last one).

Read the paired one where there is one: a seed gives both systems the same batches, and often the same initial
matrices, and the luck that both share is not in their difference; else read Welch's.

± 95%                the difference ± this is its 95% confidence interval under other seeds, by the paired test where
                     there is one, else by Welch's. A difference without significance is no equality: the interval
                     has the differences that these seeds do not exclude.

A difference is worth reporting if both p are small. With several systems neither p-values nor intervals are corrected.
All p are two-sided except the bootstrap's: sacrebleu counts one side, and gives .025 where the others give .05. Because
it takes the difference without its sign, its p of equal systems is about .43, not .5.
"""

import pathlib

from ..files import refuse_output, write_text
from .comparison.report import draw, report
from .comparison.significance import TESTS, buckets, differences, read_systems
from .shared.command import exit_in_one_line, new_parser
from .shared.metrics import signatures
from .shared.pictures import save
from .shared.translations import add_options


@exit_in_one_line("nmt-compare")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-compare", __doc__)
    help = "a system and its outputs (or the folders of its runs), one for each seed: runs/vaswani.seed3 has seed 3"
    parser.add_argument("--system", action="append", nargs="+", required=True, metavar=("NAME", "FILE"), help=help)
    parser.add_argument("--baseline", metavar="NAME", help="the system to compare with (default: the first)")
    add_options(parser)
    help = "test over sentences (default: bootstrap, 1,000 samples; randomisation: 10,000)"
    parser.add_argument("--test", choices=TESTS, default="bootstrap", help=help)
    help = "text by whose lengths in words scores are split, e.g. the source; with spaces between the words "
    help += "(default: the reference)"
    parser.add_argument("--lengths-of", type=pathlib.Path, metavar="FILE", help=help)
    help = "longest length in each bucket but the last (default: five of similar size)"
    parser.add_argument("--bounds", type=int, nargs="+", metavar="WORDS", help=help)
    help = "OUTPUT.md and OUTPUT.png are written, in place of earlier ones"
    parser.add_argument("--output", required=True, type=pathlib.Path, help=help)
    args = parser.parse_args(arguments)
    refuse_output(args.output)
    output = args.output.with_suffix("") if args.output.suffix in (".md", ".png") else args.output
    page, picture = (output.with_name(output.name + ending) for ending in (".md", ".png"))
    systems, used = read_systems(args)
    read = [run.path for system in systems for run in system.runs]
    for path in (page, picture):
        refuse_output(path, filter(None, [args.reference, args.lengths_of, *read]))
    parts = buckets(args.lengths_of, systems[0].runs[0].references, args.bounds)
    rows, signature = differences(systems, used, args.test)
    lengths_of = str(args.lengths_of or "the reference")
    text = report(systems, used, rows, parts, lengths_of)
    sides = "one-sided, whose .025 is the .05 of the other tests" if args.test == "bootstrap" else "two-sided"
    text += signatures(used, args.reference) + f"\n- p, other sentences: paired {args.test}, {sides}, `{signature}`\n"
    text += "".join(f"- {system.name}: {', '.join(str(run.path) for run in system.runs)}\n" for system in systems)
    save(draw(systems, used["sacreBLEU"], parts, lengths_of), picture)
    write_text(page, text)
    print(text)
    print(f"{page}, {picture}")


if __name__ == "__main__":
    main()
