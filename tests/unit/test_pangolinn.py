"""pangolinn's suites (https://github.com/hlt-mt/pangolinn) on our encoders and decoders: padding and causality."""

import unittest

import pytest
import torch
from pangolinn import seq2seq

from user_dir.transformer.architectures import FAMILIES

from support import EOS, PAD, PRE_NORM, SMALL

WORD = 4


class Wrapper(seq2seq.PangolinnSeq2SeqModuleWrapper):
    """Vectors in place of words: pangolinn's [B, T, C]."""

    num_input_channels = SMALL["encoder_embed_dim"]
    input_dtype = torch.double

    def __init__(self, model):
        self.model = model
        super().__init__()

    def build_module(self):
        return self.model


class Encoder(Wrapper):
    def forward(self, x, lengths):
        padding = torch.arange(x.size(1)) >= lengths[:, None]
        tokens = torch.full(padding.shape, WORD).masked_fill(padding, PAD)
        out = self.model.encoder(tokens, lengths, token_embeddings=x)
        # Nobody reads the padding of fairseq's encoder, which need not be zero.
        return out["encoder_out"][0].transpose(0, 1).masked_fill(out["encoder_padding_mask"][0][..., None], 0)


class Decoder(Wrapper):
    def forward(self, x, lengths):
        """The output for a translation with these vectors for its words, and always the same source."""
        x = x * torch.arange(1, x.size(2) + 1)  # pangolinn adds gradients up: through a first LayerNorm they sum to 0
        source = torch.tensor([[WORD, WORD + 1, EOS]]).expand(len(x), -1)
        encoder_out = self.model.encoder(source, torch.full((len(x),), 3))
        with self.model.decoder.embed_tokens.register_forward_hook(lambda *_: x):
            tokens = torch.full(x.shape[:2], WORD)
            return self.model.decoder(tokens, encoder_out=encoder_out, features_only=True)[0]


CASES = [
    (wrapper, suite, test)
    for wrapper, suite in ((Encoder, seq2seq.EncoderPaddingTestCase), (Decoder, seq2seq.CausalTestCase))
    for test in unittest.defaultTestLoader.getTestCaseNames(suite)
]
every_case = pytest.mark.parametrize("wrapper, suite, test", CASES, ids=[test for *_, test in CASES])


@pytest.fixture
def check(build):
    """check(wrapper, suite, test, family): runs this test of the suite, which raises."""

    def check(wrapper, suite, test, family, **options):
        model = build(f"{family}_base", **options).double()
        type(suite.__name__, (suite,), {"module_wrapper_class": lambda self: wrapper(model)})(test).debug()

    return check


@every_case
@pytest.mark.parametrize("norm", [{}, PRE_NORM], ids=["post", "pre"])
@pytest.mark.parametrize("family", FAMILIES)
def test_passes(check, wrapper, suite, test, family, norm):
    check(wrapper, suite, test, family, **norm)


@pytest.mark.parametrize("wrapper, suite, test", [case for case in CASES if case[2] != "test_padding_area_is_zero"])
def test_fails_without_the_mask(check, monkeypatch, wrapper, suite, test):
    monkeypatch.setattr("user_dir.attention.multihead.visible_keys", lambda *_: None)
    with pytest.raises(AssertionError):
        check(wrapper, suite, test, next(iter(FAMILIES)))
