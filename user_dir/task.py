"""The task `checked_translation`: fairseq's `translation` for long trainings and fast searches.

fairseq calls the task to train and to search, so the input of both is checked here.
"""

import argparse
import atexit
import copy
import functools
import hashlib
import json
from dataclasses import dataclass

import torch
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig
from fairseq.token_generation_constraints import pack_constraints, unpack_constraints
from omegaconf import II
from torch import distributed

from .checkpoints.trusted import as_dict, refuse_untrusted
from .config import EMBEDDINGS, option, training_options, whole
from .errors import InputError
from .preparation import detokeniser
from .search.beam import LENGTH_PENALTIES, SEARCHES, BeamSearchGenerator, block_n_grams
from .search.search_settings import IGNORED, OF_GENERATE, refuse_search
from .training.bpe_dropout import with_bpe_dropout
from .training.data import Sample, refuse_folder
from .training.epochs import OneIteratorTask
from .training.first_checkpoint import refuse_checkpoints
from .training.input import refuse_input
from .training.last_checkpoint import prepare_last_checkpoint
from .training.processes import WholeSize, end_with_parent, refuse_processes, resident_memory, stop_loading
from .training.restarts import (
    close_other_logs,
    continue_clock,
    continue_interval,
    continue_patience,
    forget_another_best,
    forget_other_trainings,
    interval_so_far,
    measured,
    patience_so_far,
    seconds_so_far,
    start_clock,
)
from .transformer.model import TransformerModel


@dataclass
class CheckedTranslationConfig(TranslationConfig):
    lenpen_form: ChoiceEnum([*LENGTH_PENALTIES]) = option(
        "fairseq",
        "divide hypotheses' log-probabilities by length^A with the A of --lenpen (fairseq), or by ((5 + length)/6)^A "
        "(vaswani: Vaswani et al. 2017, section 6.1)",
    )
    bpe_dropout: float = option(
        0.0,
        "segment the training text anew in each epoch, skipping each merge with this probability "
        "(Provilkov et al. 2020); needs data of data-prep/prepare.py",
    )
    bpe_dropout_side: ChoiceEnum(["both", "source", "target"]) = option("both", "the side of --bpe-dropout")
    upsample_primary: int = option(
        1, "how often an epoch reads the first of several training sets, or combined validation sets; others, once"
    )
    valid_pairs: int = option(
        0, "validate on this many pairs (0: all), always the same ones, but not of the training set"
    )
    seed: int = II("common.seed")


class DoesNotFit(InputError, RuntimeError):
    """A batch that does not fit into memory.

    After another error than a RuntimeError fairseq would save crash.pt, for which it may need all processes.
    """


@register_task("checked_translation", dataclass=CheckedTranslationConfig)
class CheckedTranslationTask(OneIteratorTask):
    """fairseq's `translation`; the checkpoints of both tasks are interchangeable.

    - It refuses unusable data, checkpoints, processes and options before a training begins.
    - It searches with BeamSearchGenerator, and offers the paper's length penalty.
    - Its epochs are those of OneIteratorTask.
    - --patience, the log's clock and the means of its lines continue after restarts; --valid-pairs validates on a
      sample.
    - After the last epoch of --max-epoch it validates and saves, whatever the intervals are.
    - A checkpoint is not used with dictionaries of other words, nor in the other direction.
    - The training log has `memory_gb`, the resident memory of the process and its data-loader workers, and
      `gpu_memory_gb`, the memory that torch holds on its GPU.
    """

    kept = None  # with --reset-dataloader, what the checkpoint would give to `set_checkpoint_dict`
    of_checkpoint = False  # whether it serves a trained model, and has the options of that training

    @classmethod
    def setup_task(cls, cfg, from_checkpoint=False, **kwargs):
        """As fairseq's; raises InputError as refuse_folder."""
        refuse_folder(cfg)
        task = super().setup_task(cfg, **kwargs)
        task.of_checkpoint = from_checkpoint
        return task

    @classmethod
    def load_dictionary(cls, filename):
        """As fairseq's; raises InputError for a damaged file."""
        try:
            return super().load_dictionary(filename)
        except Exception as error:  # for another encoding fairseq raises a bare Exception
            reason = " ".join(str(error).split())  # it quotes a line
            raise InputError(f"{filename} is not a dictionary ({reason}): prepare the data again") from error

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        """As fairseq's; in training, --bpe-dropout applies to the training set and --valid-pairs to all others.

        Raises:
            InputError: if there is no such data set, or as with_bpe_dropout
        """
        try:
            super().load_dataset(split, epoch, combine, **kwargs)
        except FileNotFoundError as error:
            remedy = "name another one, prepare it, or add --dataset-impl raw if it is text"
            raise InputError(f"{self.cfg.data} has no data set {split}: {remedy}") from error
        if self.of_checkpoint:
            return
        if split != self.cfg.train_subset:
            if self.cfg.valid_pairs:
                self.datasets[split] = Sample(self.datasets[split], self.cfg.valid_pairs)
        elif self.cfg.bpe_dropout or self.cfg.bpe_dropout_side != "both":
            self.datasets[split] = with_bpe_dropout(self.datasets[split], self)

    def build_model(self, cfg, from_checkpoint=False):
        """Called by fairseq to build the model that it will train, or into which it will load a checkpoint.

        Raises:
            InputError: for unusable training options, data or checkpoints, and for options that run code when loaded
        """
        if from_checkpoint:
            refuse_untrusted("the checkpoint", {"model": cfg})
            for name in EMBEDDINGS.keys() & {*as_dict(cfg)}:  # the model's parameters replace them
                setattr(cfg, name, None)
            self.detokenise_in_target_language()
            return super().build_model(cfg, from_checkpoint)
        options = argparse.Namespace(**training_options(self.cfg))
        if not hasattr(options, "save_dir"):  # a program builds a model without training it
            return super().build_model(cfg, from_checkpoint)
        forget_other_trainings()
        stop_loading()  # theirs: one that --max-update ended would wait, with its data and its model, for room
        self.curriculum = options.curriculum
        refuse_processes(options)
        end_with_parent()
        atexit.register(stop_loading)
        # fairseq's first process would send the checkpoint to the others, where torch refuses the options in it.
        whole(self.cfg)["checkpoint"]["load_checkpoint_on_all_dp_ranks"] = True
        prepare_last_checkpoint(options, self)
        refuse_input(options, self, cfg)
        self.detokenise_in_target_language()
        model = super().build_model(cfg, from_checkpoint)
        refuse_checkpoints(options, self, model)
        if isinstance(model, TransformerModel):
            model.decoder.make_generation_fast_()  # the beam search of --eval-bleu reads no attention
        return model

    def detokenise_in_target_language(self) -> None:
        """For --eval-bleu, also of fairseq-validate; with --eval-bleu-detok moses fairseq detokenises as in English."""
        if self.cfg.eval_bleu and self.cfg.eval_bleu_detok == "moses":
            given = {"target_lang": self.cfg.target_lang, **json.loads(self.cfg.eval_bleu_detok_args)}
            self.cfg.eval_bleu_detok_args = json.dumps(given)

    def build_dataset_for_inference(self, src_tokens, src_lengths, constraints=None):
        """As fairseq's, without the empty constraints between two tabs, with which others would fail or not be met."""
        if constraints is not None:
            constraints = pack_constraints([[c for c in unpack_constraints(row) if len(c)] for row in constraints])
        return super().build_dataset_for_inference(src_tokens, src_lengths, constraints=constraints)

    def build_generator(self, models, args, seq_gen_cls=None, **kwargs):
        """As fairseq's, with our search and --lenpen-form.

        Raises:
            InputError: for an invalid beam, nbest or lenpen, and for options that have no effect or always fail
        """
        given = {name: getattr(args, name, None) for name in ("beam", "nbest", "lenpen", *IGNORED)}
        options = training_options(self.cfg)
        given["num_shards"] = options.get("num_shards", 1) > 1  # not one of the search's
        if options.get("distributed_world_size", 1) > 1:
            given["distributed_world_size"] = options.get("path")  # a training has none
        if "extra_gen_cls_kwargs" in kwargs:  # fairseq-generate's call
            given |= dict.fromkeys(OF_GENERATE)
        refuse_search(**given)
        if seq_gen_cls is None and not getattr(args, "print_alignment", False):
            seq_gen_cls = BeamSearchGenerator
        generator = super().build_generator(models, args, seq_gen_cls, **kwargs)
        if isinstance(generator, SequenceGenerator):  # fairseq's scorer of references has no length penalty
            generator.len_penalty = LENGTH_PENALTIES[self.cfg.lenpen_form](generator.len_penalty)
            if blocker := generator.repeat_ngram_blocker:  # fairseq's also compares positions that have no word yet
                blocker.forward = functools.partial(block_n_grams, blocker.no_repeat_ngram_size)
            generator.search.__class__ = SEARCHES.get(type(generator.search), type(generator.search))
        return generator

    def build_tokenizer(self, args):
        """As fairseq's, for --tokenizer moses with translations in any script."""
        tokenizer = super().build_tokenizer(args)
        if isinstance(tokenizer, MosesTokenizer):
            tokenizer.decode = detokeniser(tokenizer.cfg.target_lang)
        return tokenizer

    def state_dict(self) -> dict:
        """Called by fairseq to save what `load_state_dict` gets: a checkpoint has no words, only their folder."""
        sides = (self.source_dictionary, self.target_dictionary)
        digests = [hashlib.sha256("\n".join(side.symbols).encode()).hexdigest()[:16] for side in sides]
        languages = [self.cfg.source_lang, self.cfg.target_lang]
        return {**super().state_dict(), "dictionaries": digests, "languages": languages}

    def load_state_dict(self, state: dict) -> None:
        """Called with what a checkpoint says of its task.

        Raises:
            InputError: if its dictionaries have other words, or the model translates in the other direction
        """
        source, target = self.cfg.source_lang, self.cfg.target_lang
        if source != target and state.get("languages") == [target, source]:  # which also changes the dictionaries
            raise InputError(f"the model translates {target} to {source}: add -s {target} -t {source}")
        words = self.state_dict()["dictionaries"]
        if state.get("dictionaries", words) != words:
            reason = f"the model was trained with other dictionaries than those of {self.cfg.data}"
            raise InputError(f"{reason}: name the data of its training")

    def begin_epoch(self, epoch, model):
        """Called by fairseq when an epoch begins."""
        super().begin_epoch(epoch, model)
        start_clock()
        close_other_logs()
        if self.kept:
            continue_clock(self.kept.get("seconds", 0.0))
            forget_another_best(self.kept, measured(training_options(self.cfg), self.datasets))
            self.kept = None
        if epoch == training_options(self.cfg).get("max_epoch"):  # fairseq would save at multiples of the interval only
            root = whole(self.cfg)
            root["checkpoint"]["save_interval"] = root["dataset"]["validate_interval"] = 1

    def get_checkpoint_dict(self) -> dict:
        """Called by fairseq to save what `set_checkpoint_dict` gets when the training continues."""
        options = training_options(self.cfg)
        if "best_checkpoint_metric" not in options:  # a program trains
            return {}
        kept = {"seconds": seconds_so_far(), "interval": interval_so_far()}
        return {type(self).__name__: kept | measured(options, self.datasets) | patience_so_far()}

    def set_checkpoint_dict(self, state: dict) -> None:
        options = training_options(self.cfg)
        continue_clock(state.get("seconds", 0.0))
        if not options["reset_meters"]:
            continue_interval(state.get("interval", []))
        continue_patience(state, whole(self.cfg), measured(options, self.datasets))

    def train_step(self, *args, **kwargs):
        """As fairseq's, with the gradient of all batches divided by their size where a process ends an epoch earlier.

        fairseq leaves out a batch that does not fit into a GPU's memory; several processes would then hang.

        Raises:
            DoesNotFit: for such a batch, with several processes
        """
        try:
            loss, size, log = super().train_step(*args, **kwargs)
            return loss, WholeSize() if kwargs.get("ignore_grad") else size, self.same_entries(log)
        except RuntimeError as error:
            if "out of memory" not in str(error) or not distributed.is_initialized():
                raise
            remedy = "lower --max-tokens and raise --update-freq (in recipes lower MAX_TOKENS), and continue"
            raise DoesNotFit(f"a batch does not fit into the GPU's memory: {remedy}") from error

    def valid_step(self, sample, model, criterion):
        """As fairseq's, but R-Drop's criterion does not double the batch, and so the loss."""
        if getattr(criterion, "rdrop_alpha", 0):
            criterion = copy.copy(criterion)
            criterion.rdrop_alpha = 0
        loss, size, log = super().valid_step(sample, model, criterion)
        return loss, size, self.same_entries(log)

    def same_entries(self, log: dict) -> dict:
        """`log`, also of a batch without alignments: torch ends processes that add up different numbers of entries."""
        return {"alignment_loss": 0.0, **log} if self.cfg.load_alignments else log

    def reduce_metrics(self, logging_outputs, criterion):
        super().reduce_metrics(logging_outputs, criterion)
        if not criterion.training:
            return
        used = {"memory_gb": resident_memory()}
        if torch.cuda.is_initialized():
            used["gpu_memory_gb"] = torch.cuda.memory_reserved()
        for name, memory in used.items():
            metrics.log_scalar(name, memory / 1e9, priority=1500, round=2)


@register_task("fast_translation", dataclass=CheckedTranslationConfig)
class FastTranslationTask(CheckedTranslationTask):
    """The task's name in version 0.1, which old checkpoints and commands have."""
