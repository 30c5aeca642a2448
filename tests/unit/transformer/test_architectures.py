"""The table of architectures: what each family and size sets, and that the command line can set it otherwise."""

from dataclasses import dataclass

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY

from user_dir.config import VariantConfig, option
from user_dir.errors import InputError
from user_dir.families import FAMILIES, SIZES, Family
from user_dir.transformer.architectures import add_family
from user_dir.transformer.model import TransformerModel

from support import families_with, training_options

NAMES = [f"{family}_{size}" for family in FAMILIES for size in SIZES]


def parse(*words):
    return training_options("data", "--task", "translation", *words)


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


def test_sizes_of_fairseqs_recipes():
    """Multi30k's transformer_tiny of Wu et al. 2021, and fairseq's transformer_iwslt_de_en."""
    assert SIZES["tiny"] == (4, 128, 256, 4, 0.1)
    assert SIZES["big_en_fr"][:4] == SIZES["big"][:4]
    stock = parse("--arch", "transformer_iwslt_de_en")
    names = "layers embed_dim ffn_embed_dim attention_heads".split()
    assert SIZES["iwslt_de_en"] == (*(getattr(stock, f"encoder_{name}") for name in names), stock.dropout)


def test_decoder_follows_encoder_widths_as_in_fairseq():
    args = parse("--arch", "vaswani_transformer_base", "--encoder-embed-dim", "64", "--decoder-ffn-embed-dim", "32")
    assert (args.decoder_embed_dim, args.decoder_output_dim, args.decoder_input_dim) == (64, 64, 64)
    assert (args.encoder_ffn_embed_dim, args.decoder_ffn_embed_dim) == (2048, 32)
    args.decoder_ffn_embed_dim = None  # as null in hydra's configuration
    ARCH_CONFIG_REGISTRY[args.arch](args)
    assert args.decoder_ffn_embed_dim == 2048
    words = ("--encoder-layers", "2", "--encoder-attention-heads", "4", "--encoder-embed-dim", "64")
    names = [f"decoder_{name}" for name in ("layers", "attention_heads", "embed_dim", "ffn_embed_dim")]
    ours, stock = (parse("--arch", name, *words) for name in ("vaswani_transformer_base", "transformer"))
    assert [getattr(ours, name) for name in names] == [getattr(stock, name) for name in names]


@pytest.mark.parametrize("size", SIZES)
def test_relative_positions_are_the_papers(size):
    """Shaw et al. 2018, section 4.1."""
    args = parse("--arch", f"relative_transformer_{size}")
    expected = (8, "shared") if "big" in size else (16, "per_head")
    assert (args.relative_distance, args.relative_tables) == expected
    assert (args.relative_positions, args.absolute_positions) == ("keys_and_values", "omit")


@pytest.mark.parametrize("size", SIZES)
def test_the_combination_is_both(size):
    relative, weighted = (FAMILIES[f"{name}_transformer"].options_of(size) for name in ("relative", "weighted"))
    args = vars(parse("--arch", f"weighted_relative_transformer_{size}"))
    assert {**relative, **weighted}.items() <= args.items()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_differs_in_its_own_options_alone(family):
    plain, other = (vars(parse("--arch", f"{name}_base")) for name in ("vaswani_transformer", family))
    assert other == {**plain, **FAMILIES[family].options_of("base"), "arch": f"{family}_base"}


def test_branches_of_another_family_have_the_default_form():
    """fairseq completes the options when it parses them, and again when it builds the model."""
    args = parse("--arch", "vaswani_transformer_base", "--branched-attention", "self")
    ARCH_CONFIG_REGISTRY[args.arch](args)
    assert args.branch_residual == VariantConfig.branch_residual == "per_branch"


@pytest.mark.parametrize("family", families_with("relative_positions"))
def test_defaults_of_a_family_can_be_changed_on_the_command_line(family):
    changed = {"relative_distance": 5, "relative_tables": "shared"}
    changed |= {"relative_positions": "values", "absolute_positions": "add"}
    words = [word for name, value in changed.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert changed.items() <= vars(parse("--arch", f"{family}_big", *words)).items()


def test_an_option_that_would_keep_its_default_is_refused():
    """fairseq's TransformerConfig sets decoder.window, and reads the default of decoder_window."""

    @dataclass
    class WindowConfig(VariantConfig):
        decoder_window: int = option(0, "the number of positions that the decoder sees")
        quant_noise_window: int = option(0, "the number of positions between two with noise")

    with pytest.raises(InputError, match="--decoder-window, --quant-noise-window: fairseq takes .*: choose another"):
        add_family("window_transformer", Family({}), type("Window", (TransformerModel,), {"config": WindowConfig}))


def test_an_option_that_no_checkpoint_may_have_is_refused():
    """trusted.py takes a name that ends in "layers" for a size: the trained model would be refused."""

    @dataclass
    class TalkingConfig(VariantConfig):
        talking_layers: str = option("all", "the layers whose heads talk")
        talking_dim: int = option(8, "the size of what they say")

    with pytest.raises(InputError, match="^--talking-layers: an option of a checkpoint .*: choose another name"):
        add_family("talking_transformer", Family({}), type("Talking", (TransformerModel,), {"config": TalkingConfig}))


@pytest.mark.parametrize("name", ["transformer_align", "transformer_wmt_en_de", "vaswani_transformer"])
def test_a_name_that_is_taken_is_refused(name):
    """fairseq keeps the first model of a name without a word, and would train that one."""
    before = FAMILIES.copy(), {*ARCH_CONFIG_REGISTRY}
    with pytest.raises(InputError, match=f"{name}.*: choose another name"):
        add_family(name, Family({"dropout": 0.5}))
    assert (FAMILIES, {*ARCH_CONFIG_REGISTRY}) == before


def test_a_width_that_fairseqs_parser_reads_as_a_string():
    args = parse("--arch", "vaswani_transformer_tiny", "--decoder-output-dim", "8")
    assert args.decoder_output_dim == 8
