"""Text in, text out: a trained model, beam search, and the text's preparation before and after.

from user_dir.serving.translator import Translator

translator = Translator("runs/vaswani_transformer_tiny.fr-en/average.pt")
print(*translator.translate(["J'ouvris la boîte.", "Il fait beau."]), sep="\\n")
"""

import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from fairseq import utils
from fairseq.data import FairseqDataset
from fairseq.dataclass.configs import GenerationConfig
from torch import Tensor

from ..checkpoints.files import load, options
from ..errors import InputError
from ..search.beam import LENGTH_PENALTIES, BeamSearchGenerator
from .models import data_of, load_models, longest_source
from .preparation import Preparation, PreparedText, SplitText, preparation_of
from .search_settings import kept_settings, search_settings
from .text_translator import Hypothesis, TextTranslator, log2, refuse_search


class Translator(TextTranslator):
    """A trained model, or several as an ensemble, that translates text.

    Args:
        checkpoint, ensemble: files that fairseq or average_checkpoints wrote; of several, the mean of the
            probabilities counts
        data: the data-bin folder (default: that of the training)
        pretokenised: text is taken as it stands, as the training data were: tokens or subwords separated by spaces.
            Translations are tokens then. Data that data-prep did not prepare can only be used so
        already_split: the name of `pretokenised` up to version 0.1
        autocast: "off" for float32, "bf16" for matrix products in bfloat16 (default: as in the training)
        device: "cpu", "cuda", "cuda:1", … (default: a GPU where there is one)

    Pickled, it is opened again from its files where it arrives: by workers that multiprocessing spawns. (A worker that
    is forked after a translation can hang, in the threads that torch's OpenMP had.)

    Raises:
        InputError: if a file is missing or malformed, or they do not go together
    """

    def __init__(
        self,
        checkpoint: str | pathlib.Path,
        *ensemble: str | pathlib.Path,
        data: str | pathlib.Path | None = None,
        pretokenised: bool = False,
        already_split: bool = False,
        autocast: str | None = None,
        device: str | None = None,
    ) -> None:
        paths = [pathlib.Path(path) for path in (checkpoint, *ensemble)]
        self.kept = kept_settings(paths[0].parent)
        self.data = data_of(paths) if data is None else pathlib.Path(data)
        self.device = torch_device(device)
        overrides = {} if autocast is None else {"autocast": autocast}
        if pretokenised or already_split:
            self.text = SplitText()
        elif prepared := preparation_of(self.data):
            languages = dict(zip(("source_lang", "target_lang"), self.direction(paths[0], prepared)))
            overrides |= languages
            self.text = PreparedText(prepared, *languages.values())
        else:
            raise InputError(
                f"there is no manifest.json of data-prep beside {self.data}, so it is not known how its text was "
                "prepared: tokenise and split the text yourself as that was, and say so (--pretokenised)"
            )
        self.models, self.task, self.cfg = load_models(paths, self.data, **overrides)
        self.source_lang = self.task.cfg.source_lang
        for model in self.models:
            model.prepare_for_inference_(self.cfg)
            model.to(self.device)
        self.longest = longest_source(self.task, self.models)

    def direction(self, path: pathlib.Path, prepared: Preparation) -> tuple[str, str]:
        """Source and target language of the checkpoint `path`.

        A data-bin can be trained on in either direction, and the training may have left it to fairseq to tell.
        """
        task = options(load(path, mmap=True), "task")
        languages = task.get("source_lang"), task.get("target_lang")
        source, target = languages = languages if all(languages) else prepared.languages
        if sorted(languages) != sorted(prepared.languages):
            there = f"{self.data} has {' and '.join(prepared.languages)}"
            raise InputError(f"{path} translates {source} to {target} and {there}: name its own data")
        return languages

    def best(self, rows: list[str], nbest: int, **beam_search) -> list[list[Hypothesis]]:
        """As of TextTranslator; `beam_search`: as of `beam_search`."""
        results = self.beam_search([self.binarise(row) for row in rows], **beam_search)
        return [[self.hypothesis(found) for found in hypotheses[:nbest]] for hypotheses in results]

    def hypothesis(self, found: dict) -> Hypothesis:
        """Of what fairseq found."""
        subwords = self.task.target_dictionary.string(found["tokens"].cpu())
        return Hypothesis(self.decode(subwords), log2(found["score"].item()))

    def binarise(self, subwords: str) -> Tensor:
        """[S], ending in </s>; <unk> for what the dictionary does not have."""
        return self.task.source_dictionary.encode_line(subwords, add_if_not_exist=False).long()

    def generator(self, beam: int | None = None, lenpen: float | None = None, lenpen_form: str | None = None):
        """Beam search (default: as the run keeps it, see search_settings.py).

        `lenpen_form`: as of --task fast_translation, whatever the training's task has.
        """
        settings = search_settings(self.kept, beam=beam, lenpen=lenpen, lenpen_form=lenpen_form)
        form = LENGTH_PENALTIES[settings.pop("lenpen_form")]
        built = self.task.build_generator(self.models, GenerationConfig(**settings), BeamSearchGenerator)
        built.len_penalty = form(settings["lenpen"])
        return built

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
        refuse_search(max_tokens=max_tokens, batch_size=batch_size, **generator)
        if not sources:
            return []
        found, search = {}, self.generator(**generator)
        dataset = self.task.build_dataset_for_inference(sources, [len(source) for source in sources])
        for batch in self.batches(dataset, max_tokens, batch_size):
            found |= zip(batch["id"].tolist(), self.task.inference_step(search, self.models, batch))
            advance(len(batch["id"]))
        return [found[number] for number in range(len(sources))]

    def batches(self, dataset: FairseqDataset, max_tokens: int = 6000, batch_size: int | None = None) -> Iterator[dict]:
        """All of `dataset`, like lengths together.

        A batch has at most so many subwords, or one longer sentence, and at most so many sentences.
        """
        order = np.argsort(dataset.src_sizes, kind="stable")
        most = max(max_tokens, *map(dataset.num_tokens, order))
        for numbers in dataset.batch_by_size(order, max_tokens=most, max_sentences=batch_size):
            batch = dataset.collater([dataset[number] for number in numbers])
            yield utils.apply_to_sample(lambda tensor: tensor.to(self.device), batch)


def torch_device(name: str | None) -> torch.device:
    """The device called `name`; None: a GPU where there is one.

    Raises:
        InputError: if it is not there
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"there is no device {name} here ({reason}): name another one, such as cpu") from None
    return device
