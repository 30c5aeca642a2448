"""Times fairseq's generator with fairseq's `transformer` beside ours with our models, on a real test set.

    python tests/benchmarks/generator.py data/tatoeba.fr-en/data-bin runs/*_tiny.fr-en/average.pt

Checkpoints are trained ones; of a vaswani_transformer there must be one, whose weights fairseq's `transformer` gets.
Sentences end when they end, so that speeds are words of the best hypotheses a second, and ratios are those of words a
second; of the same weights hypotheses must be the same. With --steps all hypotheses have the same length instead, so
that all models do the same work. Run it with nothing else running.
"""

import argparse
import logging
import pathlib

import torch
from fairseq import models as fairseq_models
from fairseq import search
from fairseq.dataclass.configs import GenerationConfig
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import apply_to_sample
from parts import classes_with, print_shares, seconds_by_part
from speed import STOCK, report_speeds, time_in_turn

from user_dir.search import beam as ours
from user_dir.serving.models import load_models

BEAM = GenerationConfig(beam=4, lenpen=0.6, max_len_a=1, max_len_b=50)


def stock_of(model, cfg, task):
    """fairseq's `transformer` with the weights of a vaswani_transformer."""
    options = dict(cfg.model if isinstance(cfg.model, dict) else vars(cfg.model))
    args = argparse.Namespace(**{**options, "arch": STOCK})
    stock = fairseq_models.ARCH_MODEL_REGISTRY[STOCK].build_model(args, task)
    stock.load_state_dict(model.state_dict(), strict=True)
    return stock.eval()


def batches_of(task, sentences: int, count: int, device: str) -> list[dict]:
    """Batches of that many sentences of similar length, about `count` of the test set together, rather more."""
    dataset = task.dataset("test")
    batches = task.get_batch_iterator(dataset, None, sentences, disable_iterator_cache=True)
    found = list(batches.next_epoch_itr(shuffle=False))
    chosen = found[:: max(1, len(found) * sentences // count)]
    return [apply_to_sample(lambda tensor: tensor.to(device), batch) for batch in chosen]


def searches(model, kind: type, task, batches: list[dict], results: list):
    """An action that translates the batches; appends the hypotheses to `results`."""
    generator = task.build_generator([model], BEAM, kind)

    def action():
        results.append([found for batch in batches for found in generator.generate([model], batch)])

    return action


def parts_of(model, kind: type) -> dict:
    decoder = type(model.decoder)
    return {
        "encoder": [(type(model.encoder), "forward")],
        "attention": classes_with(model, MultiheadAttention),
        "other parts of layers": classes_with(model, TransformerDecoderLayerBase),
        "projection": [(decoder, "output_layer")],
        "log-softmax": [(type(model), "get_normalized_probs")],
        "caches": [(decoder, "reorder_incremental_state_scripting"), (type(model.encoder), "reorder_encoder_out")],
        "candidates": [(search.BeamSearch, "step"), (ours, "best_words")],
        "complete hypotheses": [(kind, "finalize_hypos"), (ours.Hypotheses, "complete")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="the data-bin that they were trained on")
    parser.add_argument("checkpoints", type=pathlib.Path, nargs="+")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 128], help="sentences in a batch")
    parser.add_argument("--sentences", type=int, default=512, help="of the test set in a round, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="words of every hypothesis (default: as many as it has)")
    args = parser.parse_args()
    if args.steps:
        BEAM.min_len, BEAM.max_len_a, BEAM.max_len_b = args.steps - 1, 0, args.steps - 1  # without </s>
    logging.disable(logging.INFO)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compared, kinds = {}, {STOCK: SequenceGenerator}
    for path in args.checkpoints:
        (model,), task, cfg = load_models([path], args.data, autocast="off")  # as fairseq's
        name = cfg.model.arch
        if name.startswith("vaswani_transformer"):
            compared[STOCK], base = stock_of(model, cfg, task), name
        compared[name], kinds[name] = model, ours.BeamSearchGenerator
    if STOCK not in compared:
        parser.error("there is no checkpoint of a vaswani_transformer among them")
    for model in compared.values():
        model.prepare_for_inference_(cfg)
        model.to(device)
    task.load_dataset("test")
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, beam {BEAM.beam}")
    for sentences in args.batches:
        batches = batches_of(task, sentences, args.sentences, device)
        results = {name: [] for name in compared}
        actions = {name: searches(compared[name], kinds[name], task, batches, results[name]) for name in compared}
        times = time_in_turn(actions, args.rounds)
        words = {name: sum(len(best["tokens"]) for best, *_ in found[-1]) for name, found in results.items()}
        speeds = {name: [words[name] / seconds for seconds in times[name]] for name in times}
        report_speeds(f"batches of {sentences} sentences", speeds)
        texts = [[h["tokens"].tolist() for beams in results[name][-1] for h in beams] for name in (STOCK, base)]
        same = sum(one == other for one, other in zip(*texts, strict=True))
        print(f"  {same} of {len(texts[0])} hypotheses of {base} are the same as fairseq's")
        shares = {name: seconds_by_part(actions[name], parts_of(compared[name], kinds[name])) for name in (STOCK, base)}
        print_shares("where the time goes", shares)


if __name__ == "__main__":
    main()
