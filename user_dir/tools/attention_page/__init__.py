"""A page that shows attention weights as lines between two sentences (Vaswani et al. 2017, figures 3 to 5)."""

import json
import pathlib

from ...attention.multihead import MultiheadAttention
from ..shared.attentions import ATTENTIONS
from ..shared.pictures import COLOURS

TEMPLATE = pathlib.Path(__file__).with_name("page.html")


def kappa(attention: MultiheadAttention) -> list[float] | None:
    """κ of each head's branch (Ahmed et al. 2017, eq. 6), which multiplies its output, perhaps M times; or None."""
    if not hasattr(attention, "kappa_alpha"):
        return None
    each = attention.num_heads // attention.branches
    return attention.kappa_alpha()[0].detach().repeat_interleave(each).tolist()


def attention(name: str, queries: list[str], keys: list[str], layers: list[MultiheadAttention], weights: list) -> dict:
    """The page's data of the attention `name`: the subwords, and of each layer weights [h, T, S] in thousandths."""
    return {
        "name": name,
        "query": ATTENTIONS[name].query,
        "key": ATTENTIONS[name].key,
        "queries": queries,
        "keys": keys,
        "layers": [
            {"weights": (1000 * found).round().int().tolist(), "kappa": kappa(layer)}
            for layer, found in zip(layers, weights)
        ],
    }


def page(title: str, texts: tuple[str, str], attentions: list[dict], first: tuple[int, int]) -> str:
    """The page, which needs nothing beside itself.

    texts: the sentence and its translation; attentions: as by `attention`; first: numbers from 0 of the attention and
    the layer that are shown first
    """
    # black would not be seen on a dark page
    colours = [colour for colour in COLOURS if colour != "#000000"]
    content = {"title": title, "texts": texts, "attentions": attentions, "first": first, "colours": colours}
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")  # no </script> or <!-- may end the script
    return TEMPLATE.read_text(encoding="utf-8").replace("{{content}}", text)
