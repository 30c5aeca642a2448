"""Text in, text out, with CTranslate2: a Translator for a folder that tools/export_ctranslate2 wrote.

Besides the model the folder holds the preparation of its text (manifest.json, bpe/) and, in translator.json, the
languages, the longest sentence and the run's settings of beam search. Neither torch nor fairseq need to be installed.
"""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable

from ..errors import InputError
from ..preparation import PreparedText, SplitText, codes_of, preparation_of
from .search_settings import checked, search_settings
from .text_translator import Hypothesis, TextTranslator, log2

FACTS = "translator.json"


def write_facts(
    folder: pathlib.Path, data: pathlib.Path, languages: tuple[str, str], longest: int, search: dict
) -> None:
    """Writes into `folder` the files that translate text for a model trained on `data`.

    Args:
        longest: the most subwords of a sentence
        search: as from search_settings.kept_settings
    """
    if prepared := preparation_of(data):
        codes = codes_of(prepared, languages[0])
        (folder / "bpe").mkdir()
        shutil.copy(codes, folder / "bpe")
        shutil.copy(prepared.folder / "manifest.json", folder)
    facts = {"source_lang": languages[0], "target_lang": languages[1], "longest": longest, "search": search}
    (folder / FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")


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

        folder = pathlib.Path(folder)
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            self.source_lang, target_lang = facts["source_lang"], facts["target_lang"]
            self.longest, search = facts["longest"], facts.get("search", {})
            if [*map(type, (self.source_lang, target_lang, self.longest))] != [str, str, int] or self.longest < 1:
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{folder} was not written by export_ctranslate2 ({FACTS}: {type(error).__name__})"
            raise InputError(f"{reason}: name a checkpoint, or export one") from None
        self.kept = checked(search, folder / FACTS)
        prepared = None if pretokenised else preparation_of(folder / FACTS)
        if not pretokenised and prepared is None:
            raise InputError(f"{folder} has no manifest.json of data-prep: tokenise the text yourself (--pretokenised)")
        self.text = PreparedText(prepared, self.source_lang, target_lang) if prepared else SplitText()
        kind, _, number = (device or "auto").partition(":")
        self.folder = folder
        with self.used():
            workers = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count())
            self.model = ctranslate2.Translator(
                str(folder), kind, device_index=int(number or 0), inter_threads=workers, intra_threads=1
            )

    @contextlib.contextmanager
    def used(self):
        """Raises InputError where CTranslate2 fails on the folder."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise InputError(f"CTranslate2 cannot use {self.folder}: {error}") from error

    def best(
        self,
        rows: list[str],
        nbest: int,
        advance: Callable[[int], object] = lambda count: None,
        max_tokens: int = 6000,
        batch_size: int | None = None,
        beam: int | None = None,
        lenpen: float | None = None,
    ) -> list[list[Hypothesis]]:
        """As in TextTranslator; similar lengths together, because CTranslate2 has one maximum length per call."""
        search = search_settings(self.kept, beam=beam, lenpen=lenpen)
        sources = [row.split() for row in rows]
        by_length = sorted(range(len(rows)), key=lambda number: len(sources[number]))
        translations = {}
        for _, similar in itertools.groupby(by_length, key=lambda number: len(sources[number]).bit_length()):
            numbers = [*similar]
            longest = len(sources[numbers[-1]]) + 1  # with </s>, which fairseq counts
            with self.used():
                results = self.model.translate_batch(
                    [sources[number] for number in numbers],
                    beam_size=search["beam"],
                    num_hypotheses=nbest,
                    length_penalty=search["lenpen"],
                    return_scores=True,
                    max_input_length=0,  # no limit, because CTranslate2's would truncate sentences
                    max_decoding_length=int(search["max_len_a"] * longest + search["max_len_b"]),
                    max_batch_size=batch_size or max_tokens,
                    batch_type="examples" if batch_size else "tokens",
                )
            translations |= zip(numbers, map(self.hypotheses, results))
            advance(len(numbers))
        return [translations[number] for number in range(len(rows))]

    def hypotheses(self, result) -> list[Hypothesis]:
        """The hypotheses in a result of CTranslate2."""
        return [
            Hypothesis(self.decode(" ".join(words)), log2(score))
            for words, score in zip(result.hypotheses, result.scores)
        ]
