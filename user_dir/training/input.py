"""Checks the options of fairseq-train, and with them the data, before training starts."""

import importlib.util
import itertools
import logging
import math
import pathlib
from collections.abc import Iterator

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import CommonConfig
from fairseq.registry import REGISTRIES
from fairseq.utils import split_paths

from ..checkpoints.files import load
from ..config import CHOICES, EMBEDDINGS
from ..errors import InputError, flag
from .data import DataSide, batch_fault, data_fault, data_sets, parts_of, validation_fault
from .evaluation import UNALIGNED, evaluation_faults
from .last_checkpoint import chosen
from .model_options import unknown_options, without_effect

logger = logging.getLogger(__name__)

# Schedules whose warm-up begins with 0, unless --warmup-init-lr says more.
FROM_ZERO = "cosine inverse_sqrt polynomial_decay reduce_lr_on_plateau step".split()
ONE_RATE = "cosine inverse_sqrt manual polynomial_decay reduce_lr_on_plateau step triangular tri_stage".split()
IN_BF16 = "train with --autocast bf16, and an architecture of fairseq's own in float32"
INTERVALS = ("save_interval", "validate_interval", "log_interval")  # fairseq divides by them


def refuse_input(options, task, model_options) -> None:
    """Refuses `options` of fairseq-train that `task` cannot train with, those of its model, and unusable data.

    Raises:
        InputError: lists the faults and says what to change; of sentences' lengths, only the first for training and
            the first for validation
    """
    faults = [*learning_faults(options), *precision_faults(options, model_options), *unusable(options, task.cfg)]
    if not options.disable_validation:
        faults += evaluation_faults(options, task.cfg, task.target_dictionary)
    faults += [*unknown_options(model_options, task.cfg), *without_effect(model_options)]
    if getattr(model_options, "share_all_embeddings", False) and task.source_dictionary != task.target_dictionary:
        remedy = "omit it, or prepare the data with one dictionary for both languages"
        faults.append(f"--share-all-embeddings: the languages have dictionaries of their own: {remedy}")
    faults += [*file_faults(options, model_options, task), *data_faults(options, task)]
    if faults:
        raise InputError("; ".join(faults))


def data_faults(options, task) -> list[str]:
    """The faults of the data sets; the lengths of sentences are compared with the limits if there is no other fault."""
    pair, folders = (task.cfg.source_lang, task.cfg.target_lang), [*map(pathlib.Path, split_paths(task.cfg.data))]
    training = [(folder, options.train_subset) for folder in folders]
    validation = [] if options.disable_validation else [(folders[0], part) for part in options.valid_subset.split(",")]
    faults = [
        f"{folder} has no {part}.{'-'.join(pair)}.{language}.idx"
        for folder, part in training + validation
        for language in pair
        if not any(parts_of(folder, part, pair, language, "*"))  # --dataset-impl raw has no index
    ]
    trained, held_out = ([*data_sets(parts, task)] for parts in (training, validation))
    for folder, part in training:
        trained = counted(trained, folder, part)
    if not options.combine_valid_subsets:
        held_out = [data for data in held_out if (data.path.parent, data.part) in validation]
    for data in trained + held_out:  # a further set in one language fairseq overlooks, or fails at without a word
        name = f"{data.path.name.rsplit('.', 2)[0]}.{pair[data.side == 'source']}.idx"
        if not data.path.with_name(name).exists():
            faults.append(f"{data.path.parent} has no {name}")
    faults += filter(None, map(data_fault, trained + held_out))
    if faults:
        return [f"{'; '.join(dict.fromkeys(faults))}: prepare the data again"]
    faults = [fault for data in trained if (fault := batch_fault(data, options, task.cfg))][:1]
    return faults + [fault for data in held_out if (fault := validation_fault(data, options, task.cfg))][:1]


def counted(trained: list[DataSide], folder: pathlib.Path, part: str) -> list[DataSide]:
    """`trained` without the sets of `folder` that fairseq does not read, as after a gap; warns of each."""
    sets = {data.part for data in trained if data.path.parent == folder}
    read = itertools.takewhile(sets.__contains__, (f"{part}{number or ''}" for number in itertools.count()))
    overlooked = sets.difference(read)
    for name in sorted(overlooked):
        logger.warning(f"{folder}: {name} is not read, because fairseq counts {part}, {part}1, {part}2, …")
    return [data for data in trained if data.path.parent != folder or data.part not in overlooked]


def learning_faults(options) -> Iterator[str]:
    """Yields the faults in the choice of the optimizer and of the learning rate."""
    if options.optimizer is None:
        yield "--optimizer is missing: add --optimizer fused_adam"
    elif "adam" in options.optimizer and [*options.lr] == [0.25]:  # fairseq's default, of SGD
        yield "--lr is missing, or 0.25, with which Adam does not learn: add one such as --lr 5e-4"
    get = vars(options).get  # hydra's have only what was given
    schedule, warmup = options.lr_scheduler, get("warmup_updates", 1)
    if schedule is None:  # a configuration of one's own for fairseq-hydra-train may lack it, or its name
        yield "lr_scheduler is missing: add lr_scheduler._name=inverse_sqrt and its options"
    elif schedule == "inverse_sqrt" and warmup < 1:
        yield "--warmup-updates 0: --lr-scheduler inverse_sqrt divides by it: give at least 1"
    elif schedule in ONE_RATE and len(options.lr) > 1:
        yield f"--lr with {len(options.lr)} rates needs --lr-scheduler fixed, not {schedule}: give one rate"
    elif schedule == "reduce_lr_on_plateau" and options.disable_validation:
        yield "--lr-scheduler reduce_lr_on_plateau needs validations: omit --disable-validation"
    elif schedule == "cosine" and get("lr_period_updates", -1) <= 0 and warmup == options.max_update > 0:
        yield f"--warmup-updates {warmup}: --lr-scheduler cosine divides by the updates after it: raise --max-update"
    elif schedule == "tri_stage" and not (get("decay_steps") or get("phase_ratio") and options.max_update):
        yield "--lr-scheduler tri_stage needs --decay-steps, or --phase-ratio and --max-update: add them"
    elif schedule == "triangular" and get("max_lr", math.inf) <= options.lr[0]:
        yield f"--max-lr {options.max_lr}: --lr-scheduler triangular begins with --lr {options.lr[0]}: give more"
    if (first := get("warmup_init_lr", 0.0)) < 0:
        first = get("min_lr", 0.0)  # of cosine and step
    name, path = chosen(options)
    begins = name == "finetune_from_model" or options.reset_optimizer or not path.exists()
    if begins and schedule in FROM_ZERO and warmup > 0 and first <= options.stop_min_lr:
        yield f"--stop-min-lr {options.stop_min_lr}: the warm-up begins with a rate of {first}: omit it"
    ended = float(get("total_num_update") or 0)  # of --lr-scheduler polynomial_decay
    unlimited = not (options.max_update or options.max_epoch or options.stop_time_hours)
    if 0 < ended < (math.inf if unlimited else options.max_update) and not options.end_learning_rate:
        rate = f"--total-num-update {ended:.0f}: the learning rate would be 0 from then on"
        yield f"{rate}, and --max-update is {options.max_update}: give both the same number"


def precision_faults(options, model_options) -> Iterator[str]:
    if not importlib.util.find_spec("torch_xla"):
        if options.bf16:
            yield f"--bf16 needs a TPU: {IN_BF16}"
        if options.tpu:
            yield "--tpu needs a TPU: omit it"
    for half in ("fp16", "bf16"):  # fairseq-train's parser adds it, fairseq-hydra-train does not
        if getattr(options, f"memory_efficient_{half}") and not getattr(options, half):
            yield f"common.memory_efficient_{half} has no effect without common.{half}=true: add it, or omit this"
    if options.store_ema and options.fp16 and not options.ema_fp32:
        yield "--store-ema with --fp16 keeps the average in float16, which rounds its changes away: add --ema-fp32"
    flattened = options.fp16 and not (options.fp16_no_flatten_grads or options.memory_efficient_fp16)
    on_cpus = options.cpu or not torch.cuda.is_available()
    if flattened and on_cpus:
        yield f"--fp16 needs a GPU: {IN_BF16}"
    if options.amp and on_cpus:
        logger.warning(f"--amp has no effect without a GPU: {IN_BF16}")
    if options.fp16 and options.amp:
        yield "--fp16 cannot be combined with --amp: omit one of them"
    if options.fp16 and len(options.update_freq) > 1 and options.fp16_scale_window is None:
        yield "--fp16 with several numbers for --update-freq needs --fp16-scale-window: add one such as 2000"
    autocast = getattr(model_options, "autocast", None) == "bf16"  # hydra's may be null, or off read as false
    if autocast and (options.fp16 or options.amp):
        given = "--fp16" if options.fp16 else "--amp"
        yield f"--autocast bf16 cannot be combined with {given}, which computes in float16: omit one of them"
    if autocast and options.ddp_backend == "fully_sharded":
        yield "--autocast bf16 cannot be combined with --ddp-backend fully_sharded: use pytorch_ddp"
    computed_again = ("checkpoint_activations", "offload_activations")  # hydra's do not imply each other
    if options.amp and any(getattr(model_options, name, False) for name in computed_again):
        reason = "which would compute layers again in float32"
        yield f"--amp cannot be combined with --checkpoint-activations, {reason}: {IN_BF16}"
    if options.amp and options.amp_scale_window is not None:
        yield f"--amp-scale-window {options.amp_scale_window}: fairseq takes --amp-init-scale for it: omit it"
    if options.amp and options.amp_init_scale != CommonConfig.amp_init_scale:
        yield f"--amp-init-scale {options.amp_init_scale}: fairseq begins with --fp16-init-scale: give that instead"


def unusable(options, task_cfg) -> Iterator[str]:
    """Yields the options with which fairseq would fail later, or train or validate on the wrong pairs."""
    for kind in CHOICES:  # fairseq-hydra-train does not know the names
        if (name := getattr(options, kind)) and name not in (known := REGISTRIES[kind]["registry"]):
            yield f"there is no {kind}._name {name}: choose from {', '.join(known)}"
    if options.criterion is None:
        yield "criterion is missing: add criterion._name=fused_label_smoothed_cross_entropy and its options"
    if options.checkpoint_suffix:
        yield "--checkpoint-suffix: a folder has the checkpoints of one training: use another --save-dir"
    if options.quantization_config_path:
        remedy = "omit it, and use nmt-export-ctranslate2 --quantization int8"
        yield f"--quantization-config-path: fairseq cannot load the checkpoints: {remedy}"
    if task_cfg.num_batch_buckets:
        yield "--num-batch-buckets is for TPUs, and fails with the installed numpy: omit it"
    if task_cfg.load_alignments and options.criterion in UNALIGNED:
        remedy = "use label_smoothed_cross_entropy_with_alignment, or omit it"
        yield f"--load-alignments has no effect on --criterion {options.criterion}: {remedy}"
    if options.grouped_shuffling and options.distributed_world_size > 1:
        yield "--grouped-shuffling leaves out the longest sentences where several processes train: omit it"
    if not 0 <= (smoothing := getattr(options, "label_smoothing", 0)) < 1:  # fairseq takes 10 for a weight of -9
        yield f"--label-smoothing {smoothing}: give a number from 0 to below 1"
    if options.max_valid_steps is not None:
        yield "--max-valid-steps takes the shortest sentences, which come first: use --valid-pairs"
    if task_cfg.valid_pairs < 0:
        yield f"--valid-pairs {task_cfg.valid_pairs}: give a number of pairs, or 0 for all"
    counts = [(name, getattr(options, name)) for name in INTERVALS] + [("update_freq", n) for n in options.update_freq]
    yield from (f"{flag(name)} {count}: give at least 1" for name, count in counts if count < 1)


def file_faults(options, model_options, task) -> Iterator[str]:
    """Yields the files that are missing, and those that fairseq would not read, or not as expected."""
    given = {name: getattr(model_options, name, None) for name in EMBEDDINGS}  # hydra's have only what was given
    given["ema_seed_model"] = options.ema_seed_model if options.store_ema else None
    for name, path in given.items():
        if not path:
            continue
        if not pathlib.Path(path).is_file():
            yield f"{flag(name)}: there is no file {path}: name another, or omit it"
        elif name == "ema_seed_model":
            yield from ema_seed_faults(pathlib.Path(path))
        else:
            dictionary = task.source_dictionary if name == "encoder_embed_path" else task.target_dictionary
            yield from embedding_faults(name, path, getattr(model_options, EMBEDDINGS[name], None), dictionary)


def ema_seed_faults(path: pathlib.Path) -> Iterator[str]:
    try:
        if "ema" not in load(path).get("extra_state", {}):
            raise InputError(f"{path} has no moving average")
    except InputError as error:
        yield f"--ema-seed-model: {error}: name a checkpoint of a training with --store-ema"


def embedding_faults(name: str, path: str, width: int | None, dictionary: Dictionary) -> Iterator[str]:
    """`name` is one of EMBEDDINGS; `width` is that of the model, None if it was not given."""
    with open(path, encoding="utf-8", errors="replace") as file:
        counts, first = next(file, "").split(), next(file, "")
        found = len(first.split()) - 1
        if len(counts) != 2:
            yield f"{flag(name)} {path}: fairseq skips the first line: begin it with the line WORDS WIDTH"
        elif found != width is not None:
            yield f"{flag(name)} {path} has vectors of {found} numbers: give {flag(EMBEDDINGS[name])} {found}"
        elif not any(line.partition(" ")[0] in dictionary.indices for line in itertools.chain([first], file)):
            yield f"{flag(name)} {path} has no word of the dictionary: give vectors of its subwords, or omit it"
