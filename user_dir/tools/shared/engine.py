"""Chooses what translates: CTranslate2, which starts in a second, or torch and fairseq, which take several seconds."""

import argparse
import contextlib
import importlib.util
import pathlib
import sys
import types
from collections.abc import Iterator

from ...errors import InputError, flag
from ...search.search_settings import kept_settings
from ...serving.exported_translator import FACTS, ExportedTranslator, difference
from ...serving.text_translator import TextTranslator

EXPORT = "ctranslate2"  # the folder beside a checkpoint


class ImportedWhenCalled(types.ModuleType):
    """A stand-in for the module of its name: each function imports the module when called."""

    def __getattr__(self, function: str):
        if function.startswith("__"):
            raise AttributeError(function)
        return lambda *args, **options: getattr(importlib.import_module(self.__name__), function)(*args, **options)


@contextlib.contextmanager
def imported_when_called(*names: str) -> Iterator[None]:
    """A context in which `from NAME import function` gives a function that imports NAME when called.

    fairseq's classification tasks import scikit-learn and SciPy for their scores: more than half of the time that
    fairseq's own import takes.
    """
    modules = {name: ImportedWhenCalled(name) for name in names if name not in sys.modules}
    for name, module in modules.items():
        package, _, child = name.rpartition(".")
        if package in modules:
            setattr(modules[package], child, module)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)


def precision(checkpoints: list[pathlib.Path], device: str | None) -> str | None:
    """The default of --autocast: that of the training (None), or "off" where bfloat16 gains nothing."""
    from ...checkpoints.files import load, saved_options
    from ...serving.translator import torch_device
    from .precision import faster_precision

    trained = {saved_options(load(path), "model").get("autocast", "off") for path in checkpoints}
    return "off" if "bf16" in trained and faster_precision(torch_device(device)) == "off" else None


def only_torch(args: argparse.Namespace) -> str | None:
    """The first option of `args` that only torch takes."""
    names = ("data", "ensemble", "autocast", "lenpen_form")
    return next((flag(name) for name in names if getattr(args, name)), None)


def why_torch(args: argparse.Namespace, export: pathlib.Path) -> str | None:
    """Why `export`, the folder beside the checkpoint, is not used; None if it is."""
    if args.engine == "torch":
        return "--engine torch is given"
    if option := only_torch(args):
        return f"{option} is given"
    if reason := difference(export, args.checkpoint):
        return reason
    if args.engine is None:
        if importlib.util.find_spec("ctranslate2") is None:
            return "ctranslate2 is not installed"
        from ctranslate2 import get_cuda_device_count

        if args.nbest:  # CTranslate2 finds the same best translation, but may find other ones after it
            return "--nbest is given"
        if args.device not in (None, "cpu"):
            return "--device is given"
        if args.device is None and get_cuda_device_count():
            return "there is a GPU"
    return None


def opened(args: argparse.Namespace) -> TextTranslator:
    """The translator that `args` ask for; one of CTranslate2's needs neither torch nor fairseq.

    Raises:
        InputError: if there is no model, or options contradict each other
    """
    given = {"pretokenised": args.pretokenised, "device": args.device}
    if (args.checkpoint / FACTS).exists():
        if option := "--engine torch" if args.engine == "torch" else only_torch(args):
            raise InputError(f"{args.checkpoint} is an export for CTranslate2: omit {option}")
        return ExportedTranslator(args.checkpoint, **given)
    checkpoint = args.checkpoint
    if checkpoint.is_dir():
        reason = f"{checkpoint} has neither average.pt nor {FACTS}"
        raise InputError(f"{reason}: name a checkpoint, a run with an average, or an export for CTranslate2")
    export = checkpoint.parent / EXPORT
    reason = why_torch(args, export)
    if reason and args.engine == "ctranslate2":
        export_it = f"export it: nmt-export-ctranslate2 {checkpoint} --output {export}"
        other_form = kept_settings(checkpoint.parent).get("lenpen_form", "fairseq") != "fairseq"  # which no export has
        option = only_torch(args) or ("--engine" if other_form else None)
        raise InputError(f"--engine ctranslate2: {reason}: {f'omit {option}' if option else export_it}")
    if reason:
        with imported_when_called("sklearn", "sklearn.metrics", "scipy.stats"):
            import torch

            from ...serving.translator import Translator

        checkpoints = [checkpoint, *args.ensemble]
        autocast = args.autocast or precision(checkpoints, args.device)
        threads = torch.get_num_threads()  # OMP_NUM_THREADS, or one for each core
        translator = Translator(*checkpoints, data=args.data, autocast=autocast, processes=threads, **given)
    else:
        translator = ExportedTranslator(export, **given)
    if args.engine is None:
        engine = f"torch, because {reason}" if reason else f"CTranslate2: {export}"
        print(f"nmt-translate: with {engine}", file=sys.stderr)
    return translator
