"""Scores translations, several runs side by side: sacreBLEU, chrF, and the tokenised BLEU of the papers.

    nmt-score runs/*/generate.log --reference data/tatoeba.fr-en/raw/test.en
    nmt-score translations.de --reference newstest2014.de

Files are fairseq-generate's output, or plain text with a hypothesis a line. The scores, all computed by sacrebleu:

sacreBLEU        the score to report: detokenised, cased text in 13a, zh or char tokens
chrF2            of characters, detokenised text
tokenised BLEU   of Moses tokens with compounds split at hyphens, of hypothesis and reference, unsmoothed: what the
                 papers report for WMT14 in German (tensor2tensor's get_ende_bleu.sh, multi-bleu.perl)
BLEU of tokens   of H- against T- lines as they are, where fairseq did not detokenise and all files have the same T-
                 lines: what fairseq-generate itself prints, of the training data's tokens (lower-cased on IWSLT14)
"""

import pathlib

from ..errors import InputError
from .shared.command import exit_in_one_line, new_parser, table
from .shared.metrics import metrics, signature, signatures, texts
from .shared.records import read_record, write_record
from .shared.translations import add_options, read_runs


@exit_in_one_line("nmt-score")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-score", __doc__)
    help = "fairseq-generate's output, a run's folder that has it, or plain text"
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="FILE", help=help)
    add_options(parser)
    help = "also write the scores of one FILE with their signatures into this JSON file, such as a recipe's run.json"
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help=help)
    args = parser.parse_args(arguments)
    if args.record and len(args.runs) > 1:
        raise InputError("--record takes the scores of one file of translations: score them one by one")
    if args.record and args.record.exists():
        read_record(args.record)  # refuses what is no record before the work
    runs, language = read_runs(args.runs, args)
    used = metrics(runs, language)
    rows, scores = [], {}
    for run in runs:
        for name, metric in used.items():
            hypotheses, references = texts(run, name)
            scores[name] = metric.corpus_score(hypotheses, [references]).score
        rows.append([str(run.path), *(f"{score:.2f}" for score in scores.values())])
    print(table(["run", *used], rows), signatures(used, args.reference), sep="\n\n")
    if args.record:
        record = read_record(args.record) if args.record.exists() else {}  # now, as another command may have added some
        for name, metric in used.items():
            entry = {"score": round(scores[name], 2), "signature": signature(name, metric)}
            record.setdefault("scores", {})[f"{name} of {runs[0].path.name}"] = entry
        write_record(args.record, record)


if __name__ == "__main__":
    main()
