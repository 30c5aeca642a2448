"""Text in, text out, with CTranslate2: a Translator for a folder that tools/export_ctranslate2 wrote.

Besides the model the folder holds the preparation of its text (manifest.json, bpe/) and, in translator.json, the
languages, the longest sentence, the run's settings of beam search and which checkpoint it is. Neither torch nor fairseq
has to be installed.
"""

import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import zipfile
from collections.abc import Callable

from ..errors import InputError
from ..preparation import PreparedText, SplitText, codes_of, preparation_of, vocabulary_of
from ..search.search_settings import checked, kept_settings, search_settings
from .respelling import Respelling
from .text_translator import MAX_TOKENS, Hypothesis, TextTranslator, log2, tokens_of_each

FACTS = "translator.json"


def fingerprint(checkpoint: pathlib.Path) -> str | None:
    """Identifies what is in a checkpoint, in milliseconds: torch saves a zip archive, which lists its files' CRC-32.

    None if it is missing or no such archive (torch before 1.6 wrote none).
    """
    if not checkpoint.is_file():  # missing, or a pipe, whose opening would wait for a writer
        return None
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            files = [(file.filename, file.file_size, file.CRC) for file in archive.infolist()]
    except Exception:  # a damaged archive fails in many ways
        return None
    return hashlib.sha256(repr(files).encode()).hexdigest()


def write_facts(folder: pathlib.Path, data: pathlib.Path, facts: dict) -> None:
    """Writes into `folder` what a translator needs besides the model trained on `data`.

    Args:
        facts: source_lang, target_lang;
            longest, longest_output: the most subwords of a sentence, and of a translation;
            search: as from search_settings.kept_settings;
            characters: of the source dictionary (respelling.characters_of);
            checkpoint: its `fingerprint`;
            quantization: of the weights, None if they are those of the checkpoint
    """
    if prepared := preparation_of(data):
        codes = codes_of(prepared, facts["source_lang"])
        (folder / "bpe").mkdir()
        shutil.copy(codes, folder / "bpe")
        if (vocabulary := vocabulary_of(codes)).is_file():
            shutil.copy(vocabulary, folder / "bpe")
        shutil.copy(prepared.folder / "manifest.json", folder)
    (folder / FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")


def read_facts(folder: pathlib.Path) -> dict:
    """The facts that `write_facts` has written into `folder`.

    Raises:
        InputError: if it is missing or malformed
    """
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        facts = {"characters": "", "longest_output": facts["longest"], **facts}  # version 0.1 wrote neither
        names = ("source_lang", "target_lang", "characters", "longest", "longest_output")
        types = [type(facts[name]) for name in names]
        if types != [str, str, str, int, int] or min(facts["longest"], facts["longest_output"]) < 1:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{folder} was not written by export_ctranslate2 ({FACTS}: {type(error).__name__})"
        raise InputError(f"{reason}: {repair(folder)}") from None
    return {**facts, "search": checked(facts.get("search", {}), folder / FACTS)}


def repair(folder: pathlib.Path) -> str:
    """The remedy for a damaged export."""
    return f"export the checkpoint again, or remove {folder}"


def difference(folder: pathlib.Path, checkpoint: pathlib.Path) -> str | None:
    """Why the export in `folder` would not translate as `checkpoint` does now; None if it would.

    Raises:
        InputError: if a file is malformed
    """
    if not (folder / FACTS).exists():
        return f"there is no {folder / FACTS}"
    facts, exported = read_facts(folder), fingerprint(checkpoint)
    if exported is None or facts.get("checkpoint") != exported:
        return f"{folder} was exported from another file than {checkpoint}"
    if facts.get("quantization"):
        return f"{folder} has the weights in {facts['quantization']}"
    if facts["search"] != kept_settings(checkpoint.parent):
        return f"{folder} has other settings of beam search than search.json beside {checkpoint}"
    return None


def prepared_text(folder: pathlib.Path, facts: dict) -> PreparedText:
    """The preparation of text with the files that `write_facts` copied into `folder`.

    Raises:
        InputError: if one is missing or malformed
    """
    prepared = preparation_of(folder / FACTS)
    if prepared is None:
        again = "export the checkpoint again, or give text in subwords (--pretokenised)"
        raise InputError(f"{folder} has no manifest.json of data-prep: {again}")
    try:
        return PreparedText(prepared, facts["source_lang"], facts["target_lang"])
    except InputError as error:  # its remedy is for data-prep's folder
        raise InputError(f"{folder} is damaged, {str(error).partition(': ')[0]}: {repair(folder)}") from error


def threads() -> int:
    """OMP_NUM_THREADS, of which the first number counts (2,1); without it, the cores that this process may use."""
    given = re.match(r"\d+", os.environ.get("OMP_NUM_THREADS", ""))
    # Linux may allow it some of them only (taskset).
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(given[0] if given else 0) or cores


class ExportedTranslator(TextTranslator):
    """A model in CTranslate2's form.

    Args:
        folder: written by tools/export_ctranslate2
        pretokenised, device: as for Translator

    Raises:
        InputError: if a file is missing or malformed
        ModuleNotFoundError: where CTranslate2 is not installed
    """

    def __init__(self, folder: str | pathlib.Path, *, pretokenised: bool = False, device: str | None = None) -> None:
        import ctranslate2

        self.folder = pathlib.Path(folder)
        facts = read_facts(self.folder)
        self.source_lang, self.longest, self.kept = facts["source_lang"], facts["longest"], facts["search"]
        self.longest_output = facts["longest_output"]
        self.text = SplitText() if pretokenised else prepared_text(self.folder, facts)
        if self.text.natural and facts["characters"]:
            self.respell = Respelling(self.text, facts["characters"])
        kind, _, number = (device or "auto").partition(":")
        elsewhere = kind != "cpu" if device else ctranslate2.get_cuda_device_count() > 0
        self.remedy = ": use --device cpu" if elsewhere or number else ""  # a GPU's libraries load when it translates
        with self.used(self.remedy or f": {repair(self.folder)}"):
            workers = 1 if elsewhere else threads()
            self.model = ctranslate2.Translator(
                str(self.folder), kind, device_index=int(number or 0), inter_threads=workers, intra_threads=1
            )

    @contextlib.contextmanager
    def used(self, remedy: str):
        """Raises InputError where CTranslate2 fails on the folder, with `remedy` at its end."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise InputError(f"CTranslate2 cannot use {self.folder}: {error}{remedy}") from error

    def best(
        self,
        rows: list[str],
        nbest: int,
        advance: Callable[[int], object] = lambda count: None,
        max_tokens: int = MAX_TOKENS,
        batch_size: int | None = None,
        beam: int | None = None,
        lenpen: float | None = None,
    ) -> list[list[Hypothesis]]:
        """As in TextTranslator; similar lengths together, because CTranslate2 has one maximum length per call.

        A call has one batch for each worker, because Python hears Ctrl-C only after it.
        """
        search = search_settings(self.kept, beam=beam, lenpen=lenpen)
        sources = [row.split() for row in rows]
        by_length = sorted(range(len(rows)), key=lambda number: len(sources[number]))
        translations, workers = {}, self.model.num_translators
        for _, similar in itertools.groupby(by_length, key=lambda number: len(sources[number]).bit_length()):
            numbers = [*similar]
            most = max(1, tokens_of_each(max_tokens, workers) // (len(sources[numbers[-1]]) + 1))
            step = min(batch_size or most, most) * workers
            for together in (numbers[start : start + step] for start in range(0, len(numbers), step)):
                longest = len(sources[together[-1]]) + 1  # with </s>, which fairseq counts
                longest_output = min(int(search["max_len_a"] * longest + search["max_len_b"]), self.longest_output)
                with self.used(self.remedy):
                    results = self.model.translate_batch(
                        [sources[number] for number in together],
                        beam_size=search["beam"],
                        num_hypotheses=nbest,
                        length_penalty=search["lenpen"] or 1e-6,  # with 0 it would end with its first hypothesis
                        return_scores=True,
                        max_input_length=0,  # no limit, because CTranslate2's would truncate sentences
                        max_decoding_length=longest_output,
                        max_batch_size=-(-len(together) // workers),
                    )
                translations |= zip(together, map(self.hypotheses, results))
                advance(len(together))
        return [translations[number] for number in range(len(rows))]

    def hypotheses(self, result) -> list[Hypothesis]:
        pairs = zip(result.hypotheses, result.scores)
        return [Hypothesis(self.decode(" ".join(words)), log2(score)) for words, score in pairs]
