"""A training's epochs: one iterator makes the batches of all of them."""

import gc

from fairseq.tasks.translation import TranslationTask


class OneIteratorTask(TranslationTask):
    """fairseq's `translation`, with one iterator over the training set.

    `--update-epoch-batch-itr True` leaves no data-loader worker behind, --curriculum ends after its epochs, and
    --valid-subset may name the training set.
    """

    epochs = None  # the iterator over the training set
    curriculum = 0  # epochs that are not shuffled

    def get_batch_iterator(self, dataset, *args, update_epoch_batch_itr=None, **kwargs):
        """As fairseq's; one iterator makes the batches of all epochs of a training.

        Only training, for which fairseq gives `update_epoch_batch_itr`, may omit the last sentences, if
        their number is not divisible by --required-batch-size-multiple.

        With --update-epoch-batch-itr True fairseq makes an iterator for each epoch. Each is part of a reference cycle
        (its sampler holds a method of it) and owns a worker process, which lives until Python's garbage collector finds
        the cycle, dozens of epochs later. Without that option, validation on the training set takes batches from the
        training.
        """
        if update_epoch_batch_itr is None:
            kwargs["required_batch_size_multiple"] = 1
            kwargs.setdefault("disable_iterator_cache", True)  # fairseq-interactive would keep every line that it reads
            if self.epochs is not None and self.epochs.dataset is dataset:
                kwargs["epoch"] = self.epochs.epoch  # fairseq gives 1, also to the training's own dataset
            return super().get_batch_iterator(dataset, *args, **kwargs)

        def make_iterator(epoch: int):
            options = {**kwargs, "epoch": epoch, "disable_iterator_cache": True}
            return super(OneIteratorTask, self).get_batch_iterator(dataset, *args, **options)

        epoch = kwargs.get("epoch", 1)
        if self.epochs is not None and self.epochs.dataset is not dataset:  # over the folder of data before this one
            if self.epochs.dataloader and self.epochs.dataloader._iterator:
                self.epochs.dataloader._iterator._shutdown_workers()  # else the collector waits 5 s for each
            self.epochs = None
            gc.collect()
        if self.epochs is None:
            self.epochs = make_iterator(epoch)
        if update_epoch_batch_itr:
            self.epochs.batch_sampler = lambda dataset, epoch: make_iterator(epoch).frozen_batches
            self.epochs.seed = kwargs.get("seed", self.epochs.seed)  # --update-ordered-indices-seed: another each time
        if self.epochs.dataloader is not None:  # it would follow --curriculum as the first epoch does
            self.epochs.epoch_batch_sampler.shuffle = epoch > self.curriculum
        return self.epochs
