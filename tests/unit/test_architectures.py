"""The table of architectures: sizes, defaults, options that are carried and options that are refused."""

import argparse
import types

import pytest
from fairseq import models, options
from fairseq.data import Dictionary

from user_dir.architectures import FAMILIES, SIZES
from user_dir.config import UNSUPPORTED, UnsupportedOption

NAMES = [f"{family}_{size}" for family in FAMILIES for size in SIZES]


def parse(*words):
    parser = options.get_training_parser()
    return options.parse_args_and_arch(parser, ["data", "--task", "translation", *words])


@pytest.mark.parametrize("name", NAMES)
def test_registered_with_its_size(name):
    args = parse("--arch", name)
    size = name.removeprefix(next(f"{family}_" for family in FAMILIES if name.startswith(f"{family}_")))
    layers, embed_dim, ffn_embed_dim, heads, dropout = SIZES[size]
    for side in ("encoder", "decoder"):
        assert getattr(args, f"{side}_layers") == layers
        assert getattr(args, f"{side}_embed_dim") == embed_dim
        assert getattr(args, f"{side}_ffn_embed_dim") == ffn_embed_dim
        assert getattr(args, f"{side}_attention_heads") == heads
        assert getattr(args, f"{side}_normalize_before") is False
    assert args.dropout == dropout
    assert args.attention_dropout == args.activation_dropout == 0


def test_decoder_follows_encoder_sizes_unless_told_otherwise():
    args = parse("--arch", "vaswani_transformer_base", "--encoder-embed-dim", "64", "--decoder-ffn-embed-dim", "32")
    assert (args.decoder_embed_dim, args.decoder_output_dim, args.decoder_input_dim) == (64, 64, 64)
    assert (args.encoder_ffn_embed_dim, args.decoder_ffn_embed_dim) == (2048, 32)


@pytest.mark.parametrize("size, millions", [("base", 63), ("big", 214), ("big_en_fr", 214)])
def test_parameters_at_the_papers_vocabulary(size, millions):
    """With a joint vocabulary of 37,000 in one shared matrix; the paper prints 65 and 213."""
    dictionary = Dictionary()
    for word in range(37000 - len(dictionary)):
        dictionary.add_symbol(str(word))
    task = types.SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    args = argparse.Namespace(arch=f"vaswani_transformer_{size}", share_all_embeddings=True)
    models.ARCH_CONFIG_REGISTRY[args.arch](args)
    model = models.ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions


@pytest.mark.parametrize("key_dim, value_dim", [(16, 64), (32, 64), (64, 32)])
def test_head_sizes_change_only_the_projections(build, key_dim, value_dim):
    """Vaswani et al. 2017, Table 3, rows B: d_k by itself; h = 4 here."""
    model = build("vaswani_transformer_base", attention_key_dim=key_dim, attention_value_dim=value_dim)
    shapes = {name: tuple(p.shape) for name, p in model.encoder.layers[0].self_attn.named_parameters()}
    assert shapes["q_proj.weight"] == shapes["k_proj.weight"] == (4 * key_dim, 16)
    assert shapes["v_proj.weight"] == (4 * value_dim, 16)
    assert shapes["out_proj.weight"] == (16, 4 * value_dim)


@pytest.mark.parametrize("option", UNSUPPORTED)
def test_options_that_are_not_carried_are_refused_by_name(build, option):
    value = {"quant_noise_pq": 0.1, "quant_noise_scalar": 0.1, "base_layers": 1}.get(option, "1")
    with pytest.raises(UnsupportedOption, match=f"--{option.replace('_', '-')} .*not supported"):
        build("vaswani_transformer_base", **{option: value})


def test_every_option_of_fairseqs_transformer_is_refused_or_known_to_work():
    """A new option of fairseq must be looked at: nothing is silently ignored."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    models.ARCH_MODEL_REGISTRY["vaswani_transformer_base"].add_args(parser)
    offered = {action.dest for action in parser._actions} - {"help"}
    sides = "embed_path embed_dim ffn_embed_dim layers attention_heads normalize_before learned_pos layerdrop"
    carried = {f"{side}_{option}" for side in ("encoder", "decoder") for option in sides.split()} | set(
        """activation_fn dropout attention_dropout activation_dropout relu_dropout max_source_positions
        max_target_positions decoder_output_dim share_decoder_input_output_embed share_all_embeddings
        no_token_positional_embeddings layernorm_embedding no_scale_embedding checkpoint_activations offload_activations
        min_params_to_wrap export no_decoder_final_norm attention_key_dim attention_value_dim autocast
        relative_positions relative_distance relative_tables absolute_positions
        branched_attention branch_residual branches branch_ffn branch_weights branch_weights_init""".split()
    )
    belongs_to_refused = {
        "quant_noise_pq_block_size", "adaptive_softmax_dropout", "adaptive_softmax_factor", "base_sublayers", "base_shuffle",
    }  # fmt: skip
    assert offered == carried | set(UNSUPPORTED) | belongs_to_refused


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", ["relative_transformer", "weighted_relative_transformer"])
def test_relative_positions_are_the_papers(family, size):
    """Shaw et al. 2018, section 4.1; every default can be changed on the command line."""
    args = parse("--arch", f"{family}_{size}")
    expected = (8, "shared") if "big" in size else (16, "per_head")
    assert (args.relative_distance, args.relative_tables) == expected
    assert (args.relative_positions, args.absolute_positions) == ("keys_and_values", "omit")
    words = "--relative-distance 5 --relative-tables shared --relative-positions values --absolute-positions add".split()
    args = parse("--arch", f"{family}_{size}", *words)
    assert (args.relative_distance, args.relative_tables, args.relative_positions, args.absolute_positions) == (5, "shared", "values", "add")


@pytest.mark.parametrize("family", FAMILIES)
def test_branches_are_the_papers(family):
    """Ahmed et al. 2017, section 3."""
    args = vars(parse("--arch", f"{family}_base"))
    assert args.get("branched_attention", "none") == ("encoder_decoder" if "weighted" in family else "none")
