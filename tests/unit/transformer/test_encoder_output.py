"""The encoder's output is fairseq's in any order, and is copied only where somebody reads it."""

import torch
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.sequence_generator import SequenceGenerator

from user_dir.transformer.encoder_output import Reordered


def test_every_part_is_fairseqs(build, batch):
    encoder = build("vaswani_transformer_base").encoder
    given = encoder(batch["src_tokens"], batch["src_lengths"], return_all_hiddens=True)
    ours = theirs = given
    for order in ([0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [9, 8, 0, 1, 5, 5], [3, 0]):
        theirs = dict(theirs, encoder_states=list(theirs["encoder_states"]))  # fairseq writes into that list
        theirs = TransformerEncoderBase.reorder_encoder_out(encoder, theirs, torch.tensor(order))
        ours = encoder.reorder_encoder_out(ours, torch.tensor(order))
    assert len(ours["encoder_states"]) == 3 and {*theirs} <= {*ours}
    for name, parts in theirs.items():
        for one, other in zip(ours[name], parts, strict=True):
            assert torch.equal(one, other), name


def test_a_search_reads_it_once(build, batch, dictionary, monkeypatch):
    """In many steps with five sentences that end at different times, the first reads two parts."""
    read, as_it_is = [], Reordered.__getitem__
    monkeypatch.setattr(Reordered, "__getitem__", lambda self, name: read.append(name) or as_it_is(self, name))
    model = build("vaswani_transformer_base")
    generator = SequenceGenerator([model], dictionary, beam_size=3, min_len=4, max_len_b=12)
    generator.generate([model], {"net_input": {name: batch[name] for name in ("src_tokens", "src_lengths")}})
    assert set(read) == {"encoder_out", "encoder_padding_mask"} and len(read) <= 5
