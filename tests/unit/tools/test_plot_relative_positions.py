"""python -m user_dir.tools.plot_relative_positions: what it reads, the picture, one clear line on bad input."""

import math

import pytest
import torch

from user_dir.tools import plot_relative_positions as tool


@pytest.fixture
def checkpoint(saved):
    """checkpoint(family, **options): as `saved`, with the options that fairseq always saves, and with random biases."""

    def checkpoint(family="relative_transformer", **options):
        names = ("encoder_normalize_before", "decoder_normalize_before", "layernorm_embedding", "no_scale_embedding")
        model, path, _ = saved(f"{family}_base", **{**dict.fromkeys(names, False), **options})
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
        torch.save(torch.load(path) | {"model": model.state_dict()}, path)
        return path, model

    return checkpoint


def test_picture(checkpoint, tmp_path, printed):
    path, picture = checkpoint()[0], tmp_path / "tables.png"
    assert printed(tool.main, path, "--output", picture) == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, [tool.KEYS, tool.VALUES, tool.SCORES]),
        ({"relative_tables": "shared"}, [tool.KEYS, tool.VALUES, tool.SCORES]),
        ({"relative_positions": "values"}, [tool.VALUES]),
        ({"relative_positions": "scalars"}, [tool.SCORES]),
        ({"encoder_normalize_before": True}, [tool.KEYS, tool.VALUES, tool.SCORES]),
    ],
)
def test_maps_are_drawn_with_their_names(checkpoint, options, kinds):
    """A decoder's query sees no later key, whose half of the map is empty. A score of 0 is white."""
    found = tool.maps(tool.load(checkpoint(**options)[0]))
    figure = tool.draw(found, "")
    drawn = {axis.get_title(): axis.images[0].get_array() for axis in figure.axes if axis.get_title()}
    assert [*drawn] == [f"{side}: {kind}" for side in tool.SIDES for kind in kinds]
    ends = {tuple(axis.images[0].get_extent()[:2]) for axis in figure.axes if axis.get_title()}
    assert ends == {(-16.5, 16.5)}  # distances to keys before the query, and after it
    for axis in [axis for axis in figure.axes if axis.get_title()]:
        assert [label.get_text() for label in axis.get_yticklabels()] == ["1", "2"]
        low, high = axis.images[0].get_clim()
        assert (low == -high) == axis.get_title().endswith(tool.SCORES)
        border = "black" if low == -high else "white"  # which the colour of 0 would hide
        assert [line.get_color() for line in axis.lines] == [border]
    for (side, kind), layers in found.items():
        seen = torch.tensor(drawn[f"{side}: {kind}"].filled(math.nan))
        expected = torch.cat(layers)
        if side == "decoder":
            assert seen[:, 17:].isnan().all()
            seen, expected = seen[:, :17], expected[:, :17]
        torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize("family, layer_norm", [("relative", "final"), ("weighted_relative", "encoder_attn")])
def test_input_of_a_post_norm_layer(checkpoint, family, layer_norm):
    """Comes from the last LayerNorm of the layer before; a branched layer has none of an FFN."""
    path, model = checkpoint(f"{family}_transformer")
    expected = getattr(model.decoder.layers[0], f"{layer_norm}_layer_norm").bias
    assert torch.equal(tool.mean_input(tool.load(path), "decoder", 1), expected)


def test_input_of_the_first_layer(checkpoint):
    def found(**options):
        path, model = checkpoint(**options)
        return tool.mean_input(tool.load(path), "decoder", 0), model.decoder

    mean, decoder = found(no_scale_embedding=True)
    torch.testing.assert_close(mean, decoder.embed_tokens.weight.mean(0))
    mean, decoder = found(layernorm_embedding=True)
    assert torch.equal(mean, decoder.layernorm_embedding.bias)
    mean, decoder = found(decoder_normalize_before=True)
    assert torch.equal(mean, decoder.layers[0].self_attn_layer_norm.bias)


@pytest.mark.parametrize("norm", [False, True])
def test_maps(checkpoint, norm):
    """The second layer's, by the equation: its mean input is the bias of the LayerNorm before it."""
    path, model = checkpoint(encoder_normalize_before=norm, relative_distance=2)
    found = tool.maps(tool.load(path))
    assert {kind for _, kind in found} == {tool.KEYS, tool.VALUES, tool.SCORES} and len(found) == 6
    layer = model.encoder.layers[1]
    mean = (layer.self_attn_layer_norm if norm else model.encoder.layers[0].final_layer_norm).bias
    words = model.encoder.embed_tokens.weight.mean(0) * 4  # √16
    first = model.encoder.layers[0].self_attn
    of_words = first.q_proj(model.encoder.layers[0].self_attn_layer_norm.bias if norm else words).view(4, 4, 1)
    torch.testing.assert_close(found["encoder", tool.SCORES][0], (first.relative_keys @ of_words)[..., 0] / 2)
    queries = layer.self_attn.q_proj(mean).view(4, 4)
    for head in range(4):
        for row in range(5):
            key = layer.self_attn.relative_keys[head, row]
            torch.testing.assert_close(found["encoder", tool.SCORES][1][head, row], queries[head] @ key / 2)
            torch.testing.assert_close(found["encoder", tool.KEYS][1][head, row], key.square().sum().sqrt())
            value = layer.self_attn.relative_values[head, row]
            torch.testing.assert_close(found["encoder", tool.VALUES][1][head, row], value.square().sum().sqrt())


def test_map_of_scalars(checkpoint):
    path, model = checkpoint(relative_positions="scalars", relative_distance=2)
    state = tool.load(path)
    scalars = state["model"]["decoder.layers.1.self_attn.relative_scalars"]
    scalars.copy_(torch.arange(20).view(4, 5))
    found = tool.maps(state)
    assert {*found} == {(side, tool.SCORES) for side in tool.SIDES}
    assert torch.equal(found["decoder", tool.SCORES][1], scalars)


@pytest.mark.parametrize(
    "mistake, words",
    [
        ("plain", "has no relative positions"),
        ("missing", "there is no checkpoint"),
        ("garbage", "is not a readable fairseq checkpoint"),
        ("format", "matplotlib cannot write xyz"),
        ("folder", "there is no folder"),
    ],
)
def test_bad_input_is_one_line(checkpoint, tmp_path, mistake, words, refusal):
    path, _ = checkpoint("vaswani_transformer" if mistake == "plain" else "relative_transformer")
    if mistake == "missing":
        path = tmp_path / "nowhere.pt"
    if mistake == "garbage":
        path.write_text("hello")
    output = {"format": "tables.xyz", "folder": "nowhere/tables.png"}.get(mistake, "tables.png")
    refusal(tool.main, path, "--output", tmp_path / output, match=words)
