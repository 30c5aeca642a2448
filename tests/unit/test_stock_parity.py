"""vaswani_transformer computes what fairseq's own `transformer` computes, from the same weights of the same names."""

import pytest
import torch

STOCK, OURS = "transformer", "vaswani_transformer_base"
OPTIONS = {
    "post-norm": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "no positions": {"no_token_positional_embeddings": True},
    "shared embeddings": {"share_all_embeddings": True},
    "shared decoder embeddings": {"share_decoder_input_output_embed": True},
    "embedding norm, no scale": {"layernorm_embedding": True, "no_scale_embedding": True},
    "decoder of another size": {"decoder_embed_dim": 24, "decoder_output_dim": 8, "decoder_input_dim": 20},
    "no final norm": {"decoder_normalize_before": True, "no_decoder_final_norm": True},
    "gelu": {"activation_fn": "gelu"},
}


def test_same_names_and_initial_weights(build):
    stock, ours = build(STOCK).state_dict(), build(OURS).state_dict()
    assert list(stock) == list(ours)
    assert all(torch.equal(stock[name], ours[name]) for name in stock)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_logits_attention_and_gradients(build, batch, options):
    stock, ours = build(STOCK, **options), build(OURS, **options)
    for model in (stock, ours):
        for parameter in model.parameters():  # initial biases are zeros: nothing would notice them missing
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    real = batch["prev_output_tokens"].ne(1)
    (logits, extra), (our_logits, our_extra) = stock(**batch), ours(**batch)
    torch.testing.assert_close(our_logits[real], logits[real], atol=1e-5, rtol=0)
    torch.testing.assert_close(our_extra["attn"][0][real], extra["attn"][0][real], atol=1e-5, rtol=0)
    for out in (logits, our_logits):
        out[real].logsumexp(-1).sum().backward()
    for (name, parameter), (_, ours_parameter) in zip(stock.named_parameters(), ours.named_parameters(), strict=True):
        torch.testing.assert_close(ours_parameter.grad, parameter.grad, atol=1e-4, rtol=1e-4, msg=name)
