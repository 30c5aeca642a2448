"""Text in, text out: what data-prep did to the training text, the model with beam search, and the way back.

    from user_dir.translator import Translator

    translator = Translator("runs/vaswani_transformer_tiny.fr-en/average.pt")
    print(*translator.translate(["J'ouvris la boîte.", "Il fait beau."]), sep="\\n")

How text was prepared stands in manifest.json, which data-prep leaves beside data-bin, and the subword codes in bpe/. It is
done here with the same libraries: data-prep reads whole corpora and starts without torch, so it has its own, faster words
for it; the tests hold both to the same tokens.
"""

import contextlib
import dataclasses
import io
import json
import math
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from fairseq import utils
from fairseq.data import FairseqDataset
from fairseq.dataclass.configs import GenerationConfig
from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from torch import Tensor

from .checkpoints import data_of, load, load_models, options
from .errors import InputError

LANGUAGE = re.compile(r"[A-Za-z]+([_-][A-Za-z0-9]+)*")  # such as fr or pt_BR; part of file names
CONTINUED = "@@"  # ends every subword but the last of a word
REMEMBERED = 300_000  # words whose subwords are remembered, at most: about 100 MB


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What data-prep did to the text of a data-bin."""

    languages: tuple[str, str]  # source and target language
    normalise: bool  # punctuation
    lowercase: bool
    separate: bool  # subwords of each language for itself


class Hypothesis(NamedTuple):
    """A translation and its score, log2 p(translation) / length^lenpen, as fairseq-generate prints it."""

    text: str
    score: float


def joined(subwords: str) -> str:
    """Tokens of subwords, both separated by spaces."""
    return (subwords + " ").replace(f"{CONTINUED} ", "").rstrip()


def preparation_of(data: pathlib.Path) -> Preparation | None:
    """What the manifest beside the data-bin folder `data` says; None if there is none.

    Raises:
        InputError: if it does not say how text was prepared
    """
    path = data.resolve().parent / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        tokens, subwords = (manifest["stages"][stage]["options"] for stage in ("tok", "bpe"))
        languages = manifest["source language"], manifest["target language"]
        choices = tokens.get("normalise", True), tokens["lowercase"], subwords["separate"]
        if not all(LANGUAGE.fullmatch(language) for language in languages) or {*map(type, choices)} != {bool}:
            raise ValueError("an option has no such value")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InputError(f"{path} does not say how the text was prepared ({reason}): run data-prep/prepare.py again, or name another folder") from None
    return Preparation(languages, *choices)


def read_codes(path: pathlib.Path) -> BPE:
    """subword-nmt's codes.

    Raises:
        InputError: if they are missing or malformed
    """
    try:
        # It writes what is wrong to the standard error, and exits.
        with open(path, encoding="utf-8", newline="\n") as stream, contextlib.redirect_stderr(io.StringIO()) as reason:
            codes = BPE(stream)
        if codes.version not in ((0, 1), (0, 2)):
            raise ValueError(f"version {'.'.join(map(str, codes.version))}")
    except FileNotFoundError:
        raise InputError(f"there are no subword codes {path}: keep bpe/ and manifest.json beside data-bin/, or split the text yourself") from None
    except (SystemExit, ValueError) as error:
        words = reason.getvalue().partition("\n")[0] or error
        raise InputError(f"{path} does not hold subword-nmt's codes ({words}): run data-prep/prepare.py again") from None
    return codes


class Translator:
    """A trained model, or several as an ensemble, that translates text.

    Args:
        checkpoint, ensemble: files that fairseq or average_checkpoints wrote; of several, the mean of the probabilities counts
        data: the data-bin folder (default: that of the training)
        already_split: text is taken as it stands, as the training data were: tokens or subwords separated by spaces.
            Translations are tokens then. Data that data-prep did not prepare can only be used so
        autocast: "off" for float32, "bf16" for matrix products in bfloat16 (default: as in the training)
        device: "cpu", "cuda", "cuda:1", … (default: a GPU where there is one)

    Raises:
        InputError: if a file is missing or malformed, or they do not go together
    """

    def __init__(
        self,
        checkpoint: str | pathlib.Path,
        *ensemble: str | pathlib.Path,
        data: str | pathlib.Path | None = None,
        already_split: bool = False,
        autocast: str | None = None,
        device: str | None = None,
    ) -> None:
        paths = [pathlib.Path(path) for path in (checkpoint, *ensemble)]
        self.data = data_of(paths) if data is None else pathlib.Path(data)
        self.device = torch_device(device)
        overrides = {} if autocast is None else {"autocast": autocast}
        prepared = None if already_split else preparation_of(self.data)
        if prepared:
            # A data-bin can be trained on in either direction, and the training may have left it to fairseq to find out.
            task = options(load(paths[0], mmap=True), "task")
            named = task.get("source_lang"), task.get("target_lang")
            source, target = languages = named if all(named) else prepared.languages
            if sorted(languages) != sorted(prepared.languages):
                raise InputError(f"{paths[0]} translates {source} to {target} and {self.data} has {' and '.join(prepared.languages)}: name its own data")
            overrides |= {"source_lang": source, "target_lang": target}
            self.codes = read_codes(self.data.resolve().parent / "bpe" / (f"codes.{source}" if prepared.separate else "codes"))
            self.normaliser, self.tokeniser, self.detokeniser = MosesPunctNormalizer(source), MosesTokenizer(source), MosesDetokenizer(target)
        elif not already_split:
            raise InputError(
                f"there is no manifest.json of data-prep beside {self.data}, so it is not known how its text was prepared: "
                "tokenise and split the text yourself as that was, and say so (--already-split)"
            )
        self.prepared = prepared
        self.models, self.task, self.cfg = load_models(paths, self.data, **overrides)
        for model in self.models:
            model.prepare_for_inference_(self.cfg)
            model.to(self.device)
        positions = utils.resolve_max_positions(self.task.max_positions(), *[model.max_positions() for model in self.models])
        self.longest = positions[0] - 1  # subwords of a sentence, without </s>

    def encode(self, text: str) -> str:
        """Subwords separated by spaces, as in the files that data-prep leaves in bpe/."""
        text = " ".join(unicodedata.normalize("NFC", text).split())
        if not self.prepared:
            return text
        if self.prepared.normalise:
            text = self.normaliser.normalize(text + "\n")  # as its command, which does not take off the line's end
        text = self.tokeniser.tokenize(text, return_str=True)
        if self.prepared.lowercase:
            text = text.lower()
        if len(self.codes.cache) > REMEMBERED:
            self.codes.cache.clear()
        return " ".join(self.codes.segment_tokens(text.split(" ")))

    def decode(self, subwords: str) -> str:
        """Text, of subwords separated by spaces; tokens, where text is taken as it stands."""
        tokens = joined(subwords)
        return self.detokeniser.detokenize(tokens.split()) if self.prepared else tokens

    def translate(self, texts: Iterable[str], **search) -> list[str]:
        """The best translation of each text; nothing for one without words. `search`: as of `search`."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts: translate([text])")
        return [found[0].text for found in self.search([self.encode(text) for text in texts], **search)]

    def search(self, rows: list[str], nbest: int = 1, **beam_search) -> list[list[Hypothesis]]:
        """The `nbest` best translations of each row of subwords (see `encode`), the best first; `beam_search`: as of that.

        A row that is too long for the model is translated in pieces, whose translations are joined; their scores' mean counts.
        """
        pieces = [(number, piece) for number, row in enumerate(rows) for piece in self.pieces(row)]
        results = self.beam_search([self.binarise(piece) for _, piece in pieces], **beam_search)
        found: list[list[list[Hypothesis]]] = [[] for _ in rows]
        for (number, _), hypotheses in zip(pieces, results):
            subwords = [self.task.target_dictionary.string(hypothesis["tokens"].cpu()) for hypothesis in hypotheses[:nbest]]
            scores = [hypothesis["score"].item() / math.log(2) for hypothesis in hypotheses]
            found[number].append([*map(Hypothesis, map(self.decode, subwords), scores)])
        return [[whole(pieces) for pieces in zip(*row)] or [Hypothesis("", 0.0)] for row in found]

    def pieces(self, row: str) -> list[str]:
        """The row of subwords in pieces that the model takes: cut after a sentence's end, else after a word's, else anywhere."""
        subwords, pieces = row.split(), []
        while len(subwords) > self.longest:
            ends = [end for end in range(1, self.longest + 1) if not subwords[end - 1].endswith(CONTINUED)]
            sentences = [end for end in ends if subwords[end - 1] in (".", "!", "?")]
            end = max(sentences or ends, default=self.longest)
            pieces.append(" ".join(subwords[:end]))
            subwords = subwords[end:]
        return [*pieces, " ".join(subwords)] if subwords else pieces

    def binarise(self, subwords: str) -> Tensor:
        """[S], ending in </s>; <unk> for what the dictionary does not have."""
        return self.task.source_dictionary.encode_line(subwords, add_if_not_exist=False).long()

    def generator(self, beam: int = 4, lenpen: float = 0.6):
        """fairseq's beam search: translations of at most 50 subwords more than the source (Vaswani et al. 2017, section 6.1)."""
        return self.task.build_generator(self.models, GenerationConfig(beam=beam, lenpen=lenpen, max_len_a=1, max_len_b=50))

    def beam_search(
        self,
        sources: list[Tensor],
        advance: Callable[[int], object] = lambda count: None,
        max_tokens: int = 6000,
        batch_size: int | None = None,
        **generator,
    ) -> list[list[dict]]:
        """fairseq's hypotheses of each source [S], the best first: their tokens, score, ….

        Args:
            advance: called with the number of sources after each batch
            max_tokens, batch_size: as of `batches`
            generator: as of `generator`
        """
        if not sources:
            return []
        found, search = {}, self.generator(**generator)
        dataset = self.task.build_dataset_for_inference(sources, [len(source) for source in sources])
        for batch in self.batches(dataset, max_tokens, batch_size):
            found |= zip(batch["id"].tolist(), self.task.inference_step(search, self.models, batch))
            advance(len(batch["id"]))
        return [found[number] for number in range(len(sources))]

    def batches(self, dataset: FairseqDataset, max_tokens: int = 6000, batch_size: int | None = None) -> Iterator[dict]:
        """All of `dataset`, like lengths together: at most so many subwords (or one longer sentence) and sentences in a batch."""
        order = np.argsort(dataset.src_sizes, kind="stable")
        most = max(max_tokens, *map(dataset.num_tokens, order))
        for numbers in dataset.batch_by_size(order, max_tokens=most, max_sentences=batch_size):
            batch = dataset.collater([dataset[number] for number in numbers])
            yield utils.apply_to_sample(lambda tensor: tensor.to(self.device), batch)


def whole(pieces: tuple[Hypothesis, ...]) -> Hypothesis:
    """The translation of a row, of those of its pieces."""
    return Hypothesis(" ".join(text for text, _ in pieces), sum(score for _, score in pieces) / len(pieces))


def torch_device(name: str | None) -> torch.device:
    """The device called `name`; None: a GPU where there is one.

    Raises:
        InputError: if it is not there
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"there is no device {name} here ({str(error).splitlines()[0]}): name another one, such as cpu") from None
    return device
