"""Prints how much of fairseq's training batches is padding, and how much would be in another order.

python tests/benchmarks/padding.py data/tatoeba.fr-en/data-bin --max-tokens 1000
"""

import argparse
import logging

import numpy as np
from fairseq.data import LanguagePairDataset, data_utils
from fairseq.tasks.translation import TranslationConfig, TranslationTask


def padding(pairs: LanguagePairDataset, order: np.ndarray, max_tokens: int) -> tuple[int, float]:
    """The number of batches, and the share of padding among their source and target tokens."""
    batches = pairs.batch_by_size(order, max_tokens=max_tokens, required_batch_size_multiple=8)
    words = slots = 0
    for batch in batches:
        for sizes in (pairs.src_sizes[batch], pairs.tgt_sizes[batch]):
            words, slots = words + sizes.sum(), slots + sizes.max() * len(sizes)
    return len(batches), 1 - words / slots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a data-bin")
    parser.add_argument("--max-tokens", type=int, default=4096)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    task = TranslationTask.setup_task(TranslationConfig(data=args.data, dataset_impl="mmap", train_subset="train"))
    task.load_dataset("train")
    pairs = task.dataset("train")
    with data_utils.numpy_seed(1):
        fairseqs = pairs.ordered_indices()
    drawn = np.random.RandomState(1).permutation(len(pairs))
    source, target = pairs.src_sizes[drawn], pairs.tgt_sizes[drawn]
    orders = {
        "by source, then target (fairseq's)": fairseqs,
        "by the longer side": drawn[np.lexsort((target, source, np.maximum(source, target)))],
    }
    for name, order in orders.items():
        batches, share = padding(pairs, order, args.max_tokens)
        print(f"{name}: {batches} batches, {share:.1%} padding")


if __name__ == "__main__":
    main()
