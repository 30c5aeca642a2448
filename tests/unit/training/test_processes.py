"""The end of a training's threads."""

import itertools
import time

from fairseq.data.iterators import BufferedIterator

from user_dir.training.processes import stop_loading


class Batches:
    """As many as are asked for."""

    def __len__(self):
        return 10**9

    def __iter__(self):
        return itertools.count()


def test_no_thread_loads_while_python_ends():
    batches = BufferedIterator(2, Batches())
    assert next(batches) == 0
    began = time.monotonic()
    stop_loading()
    assert not batches._consumer.is_alive() and time.monotonic() - began < 5
