"""Text in, text out: a trained model with beam search and the preparation of the text (see user_dir/translator.py)."""

import contextlib
import multiprocessing
import pathlib
import re
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from fairseq import utils
from fairseq.data import FairseqDataset
from fairseq.dataclass.configs import GenerationConfig
from torch import Tensor

from ..checkpoints.files import load, saved_options
from ..errors import InputError
from ..preparation import Preparation, PreparedText, SplitText, preparation_of
from ..search.beam import LENGTH_PENALTIES, BeamSearchGenerator
from ..search.search_settings import kept_settings, refuse_search, search_settings
from ..transformer.model import TransformerModel
from .forked import forked
from .models import data_of, load_models, longest_source, refuse_no_dictionaries
from .respelling import Respelling, characters_of
from .text_translator import MAX_TOKENS, Hypothesis, TextTranslator, log2, tokens_of_each

ROWS = 50  # fewer are not worth a process (tests/benchmarks/README.md)
SHARES = 4  # of each process, so that all end at about the same time


class Translator(TextTranslator):
    """A trained model, or an ensemble of several, that translates text.

    Args:
        checkpoint, ensemble: files that fairseq or average_checkpoints wrote; an ensemble averages the probabilities
        data: the data-bin folder (default: that of the training)
        pretokenised: the text is used unchanged, like the training data: tokens or subwords separated by spaces; the
            translations are tokens. Data that data-prep did not prepare require this
        autocast: "off" for float32, "bf16" for matrix products in bfloat16 (default: as in training)
        device: "cpu", "cuda", "cuda:1", … (default: a GPU if there is one)
        processes: that `translate` and `search` fork for many texts, each with one thread (on a CPU under Linux)

    When it is unpickled, for instance by a worker that multiprocessing spawns, it is loaded again from its files. (A
    worker that is forked after a translation hangs if it uses several threads of torch's OpenMP.)

    Raises:
        InputError: if a file is missing or malformed, files do not match, there is no such device, `autocast` has no
            effect, or a model does not fit into memory
    """

    def __init__(
        self,
        checkpoint: str | pathlib.Path,
        *ensemble: str | pathlib.Path,
        data: str | pathlib.Path | None = None,
        pretokenised: bool = False,
        autocast: str | None = None,
        device: str | None = None,
        processes: int = 1,
    ) -> None:
        paths = [pathlib.Path(path) for path in (checkpoint, *ensemble)]
        self.kept = kept_settings(paths[0].parent)
        self.data = data_of(paths) if data is None else pathlib.Path(data)
        self.device = torch_device(device)
        self.processes = processes if self.device.type == "cpu" and sys.platform == "linux" else 1
        overrides = {} if autocast is None else {"autocast": autocast}
        if pretokenised:
            self.text = SplitText()
        elif prepared := preparation_of(self.data):
            languages = dict(zip(("source_lang", "target_lang"), self.direction(paths[0], prepared)))
            overrides |= languages
            self.text = PreparedText(prepared, *languages.values())
        else:
            refuse_no_dictionaries(self.data)
            reason = f"there is no manifest.json beside {self.data}, so the preparation of its text is unknown"
            raise InputError(f"{reason}: give text in subwords, like the training data, with --pretokenised")
        self.models, self.task, self.cfg = load_models(paths, self.data, **overrides)
        for path, model in zip(paths, self.models):
            if autocast == "bf16" and not isinstance(model, TransformerModel):
                raise InputError(f"autocast bf16 has no effect on {path}, a model of fairseq's own: omit it")
        if self.text.natural:
            self.respell = Respelling(self.text, characters_of(self.task.source_dictionary.symbols))
        self.source_lang = self.task.cfg.source_lang
        for model in self.models:
            model.prepare_for_inference_(self.cfg)
            with fitting("the model", "name another device, such as cpu"):
                model.to(self.device)
        self.longest = longest_source(self.task, self.models)

    def direction(self, path: pathlib.Path, prepared: Preparation) -> tuple[str, str]:
        """Source and target language of the checkpoint `path`.

        A data-bin can be used in either direction, and the training may have let fairseq infer it. Raises InputError
        if `prepared` has other languages.
        """
        task = saved_options(load(path), "task")
        languages = task.get("source_lang"), task.get("target_lang")
        if not all(languages):
            return prepared.languages
        if sorted(languages) != sorted(prepared.languages):
            reason = f"but {self.data} has {' and '.join(prepared.languages)}"
            raise InputError(f"{path} translates {' to '.join(languages)}, {reason}: name its own data")
        return languages

    def best(
        self,
        rows: list[str],
        nbest: int,
        advance: Callable[[int], object] = lambda count: None,
        max_tokens: int = MAX_TOKENS,
        **beam_search,
    ) -> list[list[Hypothesis]]:
        """As in TextTranslator; `beam_search`: further arguments of `beam_search`.

        Several processes share rows and `max_tokens`.
        """
        daemon = multiprocessing.current_process().daemon  # such as Pool's workers, which may not fork
        processes = 1 if daemon else min(self.processes, len(rows) // ROWS)
        limit = tokens_of_each(max_tokens, processes)

        def read(found: list[dict]) -> list[Hypothesis]:
            return [*map(self.hypothesis, found[:nbest])]

        def alone(rows: list[str], advance: Callable[[int], object] = lambda count: None) -> list[list[Hypothesis]]:
            return self.beam_search([*map(self.binarise, rows)], advance, limit, read=read, **beam_search)

        if processes < 2:
            return alone(rows, advance)
        longest_first = sorted(range(len(rows)), key=lambda number: -len(rows[number].split()))
        shares, found = np.array_split(longest_first, SHARES * processes), {}
        results = forked(alone, [[rows[n] for n in share] for share in shares], processes)
        for hypotheses, numbers in zip(results, shares):  # zip exhausts the first, whose processes then end
            found |= zip(numbers, hypotheses)
            advance(len(numbers))
        return [found[number] for number in range(len(rows))]

    def hypothesis(self, result: dict) -> Hypothesis:
        """The Hypothesis in a result of fairseq's generator."""
        subwords = self.task.target_dictionary.string(result["tokens"].cpu())
        return Hypothesis(self.decode(subwords), log2(result["score"].item()))

    def binarise(self, subwords: str) -> Tensor:
        """[S], ending in </s>, with <unk> for subwords that are not in the dictionary."""
        return self.task.source_dictionary.encode_line(subwords, add_if_not_exist=False).long()

    def generator(self, beam: int | None = None, lenpen: float | None = None, lenpen_form: str | None = None):
        """Beam search (default: the run's settings, see search_settings.py).

        `lenpen_form`: as in --task checked_translation, whatever the task of the training was.
        """
        settings = search_settings(self.kept, beam=beam, lenpen=lenpen, lenpen_form=lenpen_form)
        form = LENGTH_PENALTIES[settings.pop("lenpen_form")]
        generator = self.task.build_generator(self.models, GenerationConfig(**settings), BeamSearchGenerator)
        generator.len_penalty = form(settings["lenpen"])
        return generator

    def beam_search(
        self,
        sources: list[Tensor],
        advance: Callable[[int], object] = lambda count: None,
        max_tokens: int = MAX_TOKENS,
        batch_size: int | None = None,
        read: Callable[[list[dict]], list] = list,
        **generator,
    ) -> list[list]:
        """fairseq's hypotheses of each source [S] (tokens, score, …), best first.

        Args:
            advance: called with the number of sources after each batch
            max_tokens, batch_size: as for `batches`
            read: makes of a source's hypotheses what is kept of them; with 20 words and a beam of 4 they take 11 kB
            generator: arguments of `generator`

        Raises:
            InputError: for an invalid number, or a batch that does not fit into memory
        """
        refuse_search(max_tokens=max_tokens, batch_size=batch_size, **generator)
        if not sources:
            return []
        hypotheses, search = {}, self.generator(**generator)
        dataset = self.task.build_dataset_for_inference(sources, [len(source) for source in sources])
        for batch in self.batches(dataset, max_tokens, batch_size):
            with fitting("a batch", "lower --max-tokens or --beam (in Python max_tokens, beam)"):
                found = self.task.inference_step(search, self.models, batch)
            hypotheses |= zip(batch["id"].tolist(), map(read, found))
            advance(len(batch["id"]))
        return [hypotheses[number] for number in range(len(sources))]

    def batches(
        self, dataset: FairseqDataset, max_tokens: int = MAX_TOKENS, batch_size: int | None = None
    ) -> Iterator[dict]:
        """All of `dataset`, similar lengths together.

        A batch has at most max_tokens subwords, or as many as the longest sentence, and at most batch_size sentences.
        """
        order = np.argsort(dataset.src_sizes, kind="stable")
        limit = max(max_tokens, *map(dataset.num_tokens, order))
        for numbers in dataset.batch_by_size(order, max_tokens=limit, max_sentences=batch_size):
            batch = dataset.collater([dataset[number] for number in numbers])
            yield utils.apply_to_sample(lambda tensor: tensor.to(self.device), batch)


@contextlib.contextmanager
def fitting(what: str, remedy: str) -> Iterator[None]:
    """Raises InputError if `what` does not fit into memory."""
    try:
        yield
    except RuntimeError as error:
        if not re.search("(out of|allocate) memory", str(error)):
            raise
        raise InputError(f"{what} does not fit into memory: {remedy}") from error


def torch_device(name: str | None) -> torch.device:
    """The device called `name`; for None a GPU if there is one.

    Raises:
        InputError: if it does not exist
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"there is no device {name} here ({reason}): name another one, such as cpu") from None
    return device
