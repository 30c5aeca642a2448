"""python -m user_dir.tools.score: sacrebleu's own numbers, and one clear line on bad input."""

import gzip
import json
import os
import re
import threading

import pytest
from sacrebleu.metrics import BLEU
from sacremoses import MosesTokenizer

from user_dir.tools import score
from user_dir.tools.shared.metrics import metrics

from support import run


def test_scores_are_those_of_sacrebleus_command(files, cells, printed):
    runs = [files.plain(0.2, 1), files.plain(0.5, 2)]
    text = printed(score.main, *runs, "--reference", files.reference)

    def split(path):
        lines = [MosesTokenizer("en").tokenize(line, return_str=True) for line in path.read_text().splitlines()]
        return files.write(f"{path.name}.atat", [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in lines])

    def sacrebleu(reference, path, *options):
        return run("sacrebleu", reference, "-i", path, "-b", "-w", 2, *options).stdout.strip()

    for path in runs:
        options = ["--tokenize", "none", "--force", "--smooth-method", "none"]
        tokenised = sacrebleu(split(files.reference), split(path), *options)
        expected = [sacrebleu(files.reference, path), sacrebleu(files.reference, path, "-m", "chrf"), tokenised]
        assert cells(text, path) == expected
        assert len({*cells(text, path)}) == 3
    assert "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in text
    assert "chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:" in text
    assert "tok:moses-en-compounds|smooth:none" in text


def test_languages_without_spaces():
    """They are not scored by how a segmenter has put the spaces."""
    for language, tokens in (("zh_CN", "zh"), ("yue", "zh"), ("ja", "char"), ("jpn_Jpan", "char"), ("hi", "13a")):
        bleu = (used := metrics([], language))["sacreBLEU"]
        assert ("tokenised BLEU" in used) == (language == "hi")  # Moses finds no words in the others
        same = bleu.corpus_score(["我是 学生。"], [["我 是学生。"]]).score
        assert f"tok:{tokens}|" in str(bleu.get_signature()) and (round(same) == 100) == (language != "hi")


def test_tokens_of_other_scripts_than_moses_knows(files, cells, printed):
    """They are closed up as nmt-translate closes them up."""
    reference = files.write("test.hi", ["वह आता है।", "राम घर गया और सो गया।"])
    tokens = files.write("tokens", ["वह आता है ।", "राम घर गया और सो गया ।"])
    text = printed(score.main, tokens, "--reference", reference, "--target-lang", "hi", "--tokenised", "yes")
    assert cells(text, tokens)[0] == "100.00"


def test_a_country_has_the_rules_of_its_language(files, cells, printed):
    reference = files.write("test.tc", ["L'eau n'est pas bleue, j'ai vu l'arbre.", "C'est l'été."])
    texts = [files.write("plain", ["L'eau n'est pas bleue, j'ai vu un arbre.", "C'est l'hiver."])]
    tokens = ["L&apos; eau n&apos; est pas bleue , j&apos; ai vu l&apos; arbre .", "C&apos; est l&apos; été ."]
    texts.append(files.write("tokens", tokens))
    found = []
    for language in ("fr", "fr_CA", "fr-CA", "FR"):
        for text, tokenised in zip(texts, ("no", "yes")):
            options = ["--reference", reference, "--target-lang", language, "--tokenised", tokenised]
            said = printed(score.main, text, *options)
            found.append(cells(said, text))
            assert "tok:moses-fr-compounds" in said
    assert found == 4 * found[:2] and found[1] == ["100.00"] * 3


@pytest.mark.parametrize("score_of_the_model", ["-1", "-inf", "nan"])
def test_unknown_words_of_the_reference_match_nothing(files, cells, printed, score_of_the_model):
    lines = ["T-0\tit was <<unk>> and <<unk>> in <<unk>> .", f"H-0\t{score_of_the_model}\t<unk> <unk> <unk> <unk>"]
    log = files.write("generate.log", lines)
    bleu, chrf, *_ = cells(printed(score.main, log, "--target-lang", "en"), log)
    assert bleu == "0.00" and float(chrf) < 1


def test_generated_by_number_of_segment(files, cells, printed):
    """Detokenised, tokenised and plain give the same scores; so do T- lines and the reference."""
    plain, references = files.plain(0.3, 1), files.sentences
    hypotheses = plain.read_text().splitlines()
    hypotheses[0] = hypotheses[7] = hypotheses[-1] = ""
    files.write(plain.name, hypotheses)
    logs = [files.generated(f"{d}.log", hypotheses, references, d) for d in (True, False)]
    text = printed(score.main, *logs, plain, "--reference", files.reference)
    expected = cells(text, plain)
    assert cells(text, logs[0]) == expected
    bleu = BLEU(tokenize="none", force=True)
    moses = MosesTokenizer("en")
    texts = [[moses.tokenize(line, return_str=True) for line in lines] for lines in (hypotheses, references)]
    of_tokens = cells(printed(score.main, logs[1], "--target-lang", "en"), logs[1])
    assert of_tokens[-1] == f"{bleu.corpus_score(texts[0], [texts[1]]).score:.2f}"
    as_tokens = f"{BLEU(force=True).corpus_score(texts[0], [references]).score:.2f}"
    found = cells(printed(score.main, logs[1], "--reference", files.reference, "--tokenised", "no"), logs[1])
    assert found[0] == as_tokens != expected[0]
    text = printed(score.main, logs[0], "--target-lang", "en")
    assert cells(text, logs[0]) == expected and "give --reference for scores to report" in text


def log(files, **skip):
    return files.generated("a.log", files.sentences, files.sentences, **skip)


def lines_of(files):
    return log(files).read_text().splitlines()


PACKED = gzip.compress(b"a line\n" * 1000)


def damaged(files, content):
    path = files.folder / "a.txt.gz"
    path.write_bytes(content)
    return [path, "--reference", files.reference]


LOST = "of 120 segments were not translated, the first is number"
MISTAKES = [
    (lambda files: damaged(files, PACKED[:-20]), "a.txt.gz cannot be read: Compressed file ended before"),
    (lambda files: damaged(files, PACKED[:10] + b"\xff" + PACKED[11:]), "a.txt.gz cannot be read: Error -3 "),
    (lambda files: [log(files, skip=(3, 5))], f"a.log: 2 {LOST} 3 .*--required-batch-size-multiple 1"),
    (
        lambda files: [files.write("a.log", [line for line in lines_of(files) if not line.startswith("D-119")])],
        f"a.log: 1 {LOST} 119 ",
    ),
    (lambda files: [log(files, skip=(118, 119)), "--reference", files.reference], f"a.log: 2 {LOST} 118 "),
    (
        lambda files: [files.write("a.log", lines_of(files) * 2)],
        r"a.log, line 602: S-119 occurs a second time.*--nbest 1",
    ),
    (
        lambda files: [log(files), "--reference", files.write("b.en", files.sentences[:100])],
        r"a.log has 120 segments and the reference has 100",
    ),
    (
        lambda files: [files.write("a.txt", ["a wo@@ rd"] * 120), "--reference", files.reference],
        r"a.txt: segment 0 is in subwords \(a wo@@ rd …\): translate with --remove-bpe",
    ),
    *[
        (lambda files, text=text: [files.write("a.txt", [text]), "--reference", files.write("b.en", ["a"])], text)
        for text in ("a wo@@", "▁a ▁wo rd")
    ],
    (lambda files: [files.write("a.txt", ["S-0\ta", "H-0\t-1\ta", "D-0\t-1\ta"])], "a.txt has no T- lines"),
    (lambda files: [files.write("a.txt", [])], "a.txt is empty"),
    (lambda files: [files.folder / "a.txt"], "a.txt cannot be read: No such file"),
    (lambda files: [files.folder], "generate.log cannot be read: No such file"),
    (lambda files: [files.write("a.txt", ["a"])], "a.txt is plain text, .*give --reference FILE"),
    (lambda files: [files.write("a.txt", ["a"]), "--reference", files.reference], "a.txt has 1 lines and the .* 120"),
    (lambda files: [files.write("a.txt", ["D-2", "H-1"])], "a.txt is plain text"),
    (lambda files: [files.write("a.txt", ["T-34", "T-34"])], "a.txt is plain text"),
    (
        lambda files: [files.write("a.txt", ["1\t-0.5468\ta", "2\t0.0000\t"] * 60), "--reference", files.reference],
        "a.txt is output of nmt-translate --nbest",
    ),
    (lambda files: [files.reference, files.reference, "--reference", files.reference], "test.en is given twice"),
    (lambda files: [files.reference, "--target-lang", "../en"], "--target-lang ../en is not a language code"),
]


@pytest.mark.parametrize("mistake, words", MISTAKES, ids=[words[:20] for _, words in MISTAKES])
def test_bad_input_is_one_line(files, refusal, mistake, words):
    refusal(score.main, "--target-lang", "en", *mistake(files), match=words)


def test_a_reference_may_be_a_pipe(files, cells, printed):
    """It is read once for all runs, and .gz is no language."""
    pipe = files.folder / "test.en.gz"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[gzip.compress(files.reference.read_bytes())], daemon=True)
    writer.start()
    runs = [files.plain(0.2, 1), files.plain(0.5, 2)]
    assert len(cells(printed(score.main, *runs, "--reference", pipe), runs[1])) == 3


def test_a_byte_order_mark_is_no_text(files, cells, printed):
    marked = files.write("marked.txt", ["\ufeff" + files.sentences[0], *files.sentences[1:]])
    text = printed(score.main, marked, "--reference", files.reference, "--target-lang", "en")
    assert cells(text, marked) == ["100.00"] * 3


def test_marks_of_subwords_that_are_text(files, cells, printed):
    """As in a reference that has them in the same segment."""
    reference = files.write("test.en", ["See @@ -1,3 +1,3 @@ here ▁▂▃ now."])
    text = files.write("plain", ["See @@ -1,3 +1,3 @@ here ▁▂▃ now."])
    assert cells(printed(score.main, text, "--reference", reference), text)[0] == "100.00"


def test_letters_are_composed(files, cells, printed):
    """As translations are: U+095C and the same letter with a dot of its own, é and e with an accent."""
    reference = files.write("test.hi", ["बड\u093cा लड\u093cका आया।", "le re\u0301sume\u0301 de l'e\u0301te\u0301"])
    text = files.write("plain", ["ब\u095cा ल\u095cका आया।", "le résumé de l'été"])
    assert cells(printed(score.main, text, "--reference", reference), text)[:2] == ["100.00"] * 2


def test_a_reference_of_other_text_is_noticed(files, caplog):
    """Also of tokens in lower case; one line that is right is enough."""
    tokens = [line.lower() for line in files.sentences]
    path = files.generated("a.log", tokens, tokens, detokenised=False)
    other = [*reversed(files.sentences)]
    for line, warned in ((other[0], True), (files.sentences[0], False)):
        files.write("test.en", [line, *other[1:]])
        caplog.clear()
        score.main([str(path), "--reference", str(files.reference)])
        assert ("is it this test set, and is it in en?" in caplog.text) == warned


def test_marks_that_no_translation_has_are_noticed(files, caplog):
    """As after normalisation; one translation with them is enough."""
    files.write("test.en", [f"“{line}”" for line in files.sentences])
    plain = files.write("a.txt", files.sentences)
    for first, warned in (("a", True), ("“a”", False)):
        caplog.clear()
        other = files.write("b.txt", [first, *files.sentences[1:]])
        score.main([*map(str, [plain, other, "--reference", files.reference])])
        said = f"{len(files.sentences)} of {len(files.sentences)} lines of {files.reference} have “ ”, which no"
        assert caplog.text.count(said) == warned
    files.write("test.en", [f"“{files.sentences[0]}”", *files.sentences[1:]])  # less than a hundredth
    caplog.clear()
    score.main([*map(str, [plain, "--reference", files.reference])])
    assert "which no translation has" not in caplog.text


def test_language_and_encoding(files, refusal):
    for reference in ([], ["--reference", files.folder / "test.gz"]):  # whose ending is no language
        assert "give --target-lang" in refusal(score.main, files.write("a.txt", ["a"]), *reference)
    (files.folder / "latin1.txt").write_bytes("façade\n".encode("latin1"))
    assert "is not text in UTF-8" in refusal(score.main, files.folder / "latin1.txt", "--reference", files.reference)
    (files.folder / "late.txt").write_bytes(b"a line\n" * 3000 + "façade\n".encode("latin1"))
    message = refusal(score.main, files.folder / "late.txt", "--reference", files.reference)
    assert "is not text in UTF-8 (byte 21002)" in message


def test_scores_are_added_to_a_record(files, cells, printed, capsys, refusal):
    points = '{"update": 50, "loss": 9.0}, {"update": 100, "loss": 7.5}'
    content = f'{{"seed": 1, "command": "κ", "scores": {{"sacreBLEU": {{"score": 1.5}}}}, "validation": [{points}]}}'
    record = files.write("run.json", [content])
    path = files.plain(0.2, 1)
    reference = ["--reference", files.reference]
    sacrebleu = float(cells(printed(score.main, path, *reference, "--record", record), path)[0])
    text = record.read_text(encoding="utf-8")
    assert '\n  {"update": 100, "loss": 7.5}\n' in text  # a line for each validation
    assert '"command": "κ"' in text  # as people read it, and no escape
    written = json.loads(text)
    assert written["seed"] == 1 and written["scores"]["sacreBLEU"] == {"score": 1.5}
    added = written["scores"][f"sacreBLEU of {path.name}"]
    assert added["score"] == sacrebleu > 10 and added["signature"].startswith("BLEU|nrefs:1|")
    assert written["scores"][f"chrF2 of {path.name}"]["signature"].startswith("chrF2|nrefs:1|case:mixed|eff:yes|nc:6|")
    new = files.folder / "new.json"
    printed(score.main, path, *reference, "--record", new)
    assert json.loads(new.read_text())["scores"][f"sacreBLEU of {path.name}"] == added
    path.rename(files.folder / "generate.log")
    printed(score.main, files.folder, *reference, "--record", new)
    assert json.loads(new.read_text())["scores"]["sacreBLEU of generate.log"] == added
    path = files.plain(0.2, 1)
    assert "there is no folder" in refusal(score.main, path, *reference, "--record", files.folder / "none/run.json")
    assert float(cells(capsys.readouterr().out, path)[0]) == sacrebleu  # which are shown all the same
    assert "--record" in refusal(score.main, path, files.plain(0.3, 1), *reference, "--record", record)
    for other in ("[]", '{"corpus": "wmt14"}', '{"scores": {"a": {}}}', "[" * 100_000):
        assert "run.json" in refusal(score.main, path, "--record", files.write("run.json", [other]))
