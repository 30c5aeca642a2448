"""Options of fairseq's Transformer: each is supported, or refused by name."""

import argparse
import itertools
from dataclasses import fields

import pytest
from fairseq import models
from fairseq.models.transformer import TransformerConfig

from user_dir.config import COUNTS, PARTS, PROBABILITIES, UNSUPPORTED, VariantConfig, own_options
from user_dir.errors import InputError


def test_every_option_of_fairseqs_transformer_is_refused_or_known_to_work():
    """A new option of fairseq must be looked at: nothing is silently ignored."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    models.ARCH_MODEL_REGISTRY["vaswani_transformer_base"].add_args(parser)
    offered = {action.dest for action in parser._actions} - {"help"}
    ours = {field.name for field in fields(VariantConfig)} - {field.name for field in fields(TransformerConfig)}
    sides = "embed_path embed_dim ffn_embed_dim layers attention_heads normalize_before learned_pos layerdrop"
    supported = {f"{side}_{option}" for side in ("encoder", "decoder") for option in sides.split()} | set(
        """activation_fn dropout attention_dropout activation_dropout relu_dropout max_source_positions
        max_target_positions decoder_output_dim share_decoder_input_output_embed share_all_embeddings
        no_token_positional_embeddings layernorm_embedding no_scale_embedding checkpoint_activations offload_activations
        min_params_to_wrap export no_decoder_final_norm""".split()
    )
    belong_to_refused = """quant_noise_pq_block_size adaptive_softmax_dropout adaptive_softmax_factor
        base_sublayers base_shuffle"""
    assert offered == ours | supported | set(UNSUPPORTED) | set(belong_to_refused.split())


def test_the_numbers_that_are_checked():
    """Written down a second time: the cases below come from the lists."""
    counts = """attention_key_dim attention_value_dim branches top_branches max_source_positions max_target_positions
        neighbourhood decoder_output_dim encoder_layers encoder_embed_dim encoder_ffn_embed_dim encoder_attention_heads
        decoder_layers decoder_embed_dim decoder_ffn_embed_dim decoder_attention_heads"""
    probabilities = "dropout attention_dropout activation_dropout relu_dropout encoder_layerdrop decoder_layerdrop"
    assert {*COUNTS} == {*counts.split()} and {*PROBABILITIES} == {*probabilities.split()}


def test_options_without_their_part_are_known():
    """A new option is listed here or in PARTS: else it could change nothing without a word."""
    alone = """attention_key_dim attention_value_dim relative_positions relative_attention absolute_positions
        restricted_attention branched_attention autocast"""
    assert {*own_options(VariantConfig)} - {name for names in PARTS.values() for name in names} == {*alone.split()}


PLAIN, RELATIVE, WEIGHTED = "vaswani_transformer", "relative_transformer", "weighted_transformer"
BOTH = "weighted_relative_transformer"
SHARED = {"share_all_embeddings": True}
IMPOSSIBLE = [*itertools.product(COUNTS, (0, -1)), *itertools.product(PROBABILITIES, (-0.1, 1.0))]
GIVEN = {"quant_noise_pq": 0.1, "quant_noise_scalar": 0.1, "base_layers": 1}  # and "1" for the others
CHOICES = ("relative_positions", "branched_attention", "autocast", "activation_fn")
REFUSED = [
    *[(PLAIN, {option: GIVEN.get(option, "1")}, f"--{option.replace('_', '-')} .*: ") for option in UNSUPPORTED],
    *[(PLAIN, {option: value}, f"--{option.replace('_', '-')} {value}: give") for option, value in IMPOSSIBLE],
    # words as --model-overrides and fairseq-hydra-train may give them
    *[(BOTH, {option: "sefl"}, f"--{option.replace('_', '-')} sefl: choose from .*, ") for option in CHOICES],
    (PLAIN, {"decoder_attention_heads": 3}, "--decoder-attention-heads 3: change"),
    (PLAIN, {"relative_attention": "all"}, "--relative-attention all .*: add --relative-positions"),
    (RELATIVE, {"relative_distance": -1}, "--relative-distance -1: give at least 0"),
    (RELATIVE, {"encoder_learned_pos": True}, "positions omit: add --absolute-positions add"),
    (RELATIVE, {"decoder_learned_pos": True}, "positions omit: add --absolute-positions add"),
    (PLAIN, {"encoder_learned_pos": True, "no_token_positional_embeddings": True}, "-positional-emb.*: omit either"),
    (PLAIN, SHARED | {"decoder_embed_dim": 32}, "--encoder-embed-dim 16 and --decoder-embed-dim 32: change one"),
    (PLAIN, SHARED | {"decoder_output_dim": 8}, "--decoder-output-dim 8 .*: omit it"),
    (
        PLAIN,
        SHARED | {"encoder_embed_path": "a", "decoder_embed_path": "b"},
        "--encoder-embed-path a and --decoder-embed-path b: change one",
    ),
    (PLAIN, {"share_decoder_input_output_embed": True, "decoder_output_dim": 8}, "--decoder-output-dim 8 .*: omit it"),
    (WEIGHTED, {"branches": 3}, "4 heads .* 3 branches.*: change --branches"),
    (WEIGHTED, {"top_branches": 5}, "--top-branches 5: .* 4"),
    (WEIGHTED, {"branch_weights": "random", "top_branches": 2}, "--top-branches 2 .*--branch-weights random"),
    (WEIGHTED, {"branch_weights": "random", "branch_weights_init": "random"}, "-weights-init .*-weights random"),
    *[
        (WEIGHTED, {"branch_residual": form, "encoder_ffn_embed_dim": 30}, "width 30 .* 4 branches.*: change")
        for form in ("per_branch", "shared", "none")
    ],
    *[
        (family, {"branch_residual": "shared", "branched_attention": both}, f"-attention {both} .*: give self or enc")
        for family in (PLAIN, WEIGHTED)  # the first has no branches if --branched-attention is omitted
        for both in ("both", "both_halves")
    ],
    # all faults at once
    (PLAIN, {"export": True, "dropout": 1.5, "encoder_attention_heads": 3}, "--export .*; --dropout 1.5: .*-heads 3: "),
]


@pytest.mark.parametrize("family, options, words", REFUSED, ids=str)
def test_models_that_cannot_be(build, family, options, words):
    with pytest.raises(InputError, match=words):
        build(f"{family}_base", **options)


def test_one_vector_for_all_distances(build):
    """k = 0, as in Table 2 of Shaw et al. 2018."""
    build(f"{RELATIVE}_base", relative_distance=0)
