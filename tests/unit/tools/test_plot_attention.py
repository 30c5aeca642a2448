"""python -m user_dir.tools.plot_attention: weights of the equation, labels are subwords, bad input is one line."""

import html.parser
import json
import re
import shutil
import subprocess

import pytest
import torch

from user_dir.serving.translator import Translator
from user_dir.tools import attention_page
from user_dir.tools import plot_attention as tool
from user_dir.tools.shared import pictures
from user_dir.tools.shared.attentions import ATTENTIONS, attention_weights, attentions_of
from user_dir.transformer.architectures import FAMILIES

from comparing import heads_by_equation
from support import CODES, write_preparation

SOURCE, TARGET = torch.tensor([4, 20, 9, 33, 2]), torch.tensor([7, 41, 12, 30, 8, 2])
RESTRICTED = {"restricted_attention": "both", "neighbourhood": 3}
MODELS = [(family, {}) for family in FAMILIES] + [(family, RESTRICTED) for family in [*FAMILIES][:2]]


@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize("family, options", MODELS)
def test_weights(build, family, options, kind):
    model = build(f"{family}_base", **options)
    for parameter in model.parameters():  # large and random, so that no weight is near uniform
        torch.nn.init.normal_(parameter, std=0.5)
    _, attention = attentions_of(model, kind)
    inputs = {}
    attention.register_forward_pre_hook(lambda module, args, kwargs: inputs.update(kwargs, args=args), with_kwargs=True)
    (weights,) = attention_weights(model, [attention], SOURCE, TARGET)
    query, key = (inputs["query"], inputs["key"]) if "query" in inputs else inputs["args"][:2]
    with torch.no_grad():
        _, expected = heads_by_equation(attention.double(), query.double(), key.double(), causal=kind == "decoder")
    torch.testing.assert_close(weights.double(), expected[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    assert weights.shape == (4, 5 if kind == "encoder" else 6, 6 if kind == "decoder" else 5)
    if kind == "decoder":
        assert weights.triu(1).count_nonzero() == 0
    assert not attention.observers  # the model is as it was


@pytest.mark.parametrize("kind, layer", zip(ATTENTIONS, (1, 2, 1)))
def test_picture(saved, dictionary, kind, layer, monkeypatch, capsys):
    _, path, data = saved("vaswani_transformer_base")
    figures, searched, beam_search, search = [], [], Translator.beam_search, {"beam": 2, "lenpen": 0.5}

    def searching(*given, **options):
        searched.append(options)
        return beam_search(*given, **options)

    monkeypatch.setattr(Translator, "beam_search", searching)
    monkeypatch.setattr("user_dir.serving.translator.torch_device", lambda name: torch.device(name or "meta"))  # a GPU
    monkeypatch.setattr(tool, "save", lambda figure, path: figures.append(figure))
    options = ["--pretokenised", "--attention", kind, "--layer", str(layer), "--output", "a.png"]
    options += ["--beam", "2", "--lenpen", "0.5"]
    tool.main([str(path), "--data", str(data), "--sentence", "w3 w4 w5", *options])
    assert searched == [search]
    assert figures[0].get_suptitle().endswith(f": {kind} attention, layer {layer} of 2")
    translation = capsys.readouterr().out.splitlines()[0].split()

    translator = Translator(path, data=data, pretokenised=True, device="cpu")
    source = dictionary.encode_line("w3 w4 w5", add_if_not_exist=False).long()
    target = translator.beam_search([source], **search)[0][0]["tokens"]
    assert [dictionary[token] for token in target] == [*translation, "</s>"]
    (model,) = translator.models
    (weights,) = attention_weights(model, [attentions_of(model, kind)[layer - 1]], source, target)
    heads = [axis for axis in figures[0].axes if axis.images]
    assert [axis.get_title() for axis in heads] == ["head 1", "head 2", "head 3", "head 4"]
    names = figures[0].get_supylabel(), figures[0].get_supxlabel()
    assert names == (f"query: {ATTENTIONS[kind].query}", f"key: {ATTENTIONS[kind].key}")
    for axis, values in zip(heads, weights):
        torch.testing.assert_close(torch.from_numpy(axis.images[0].get_array().data), values)
    ticks = heads[0].get_yticklabels(), heads[0].get_xticklabels()
    labels = tuple([label.get_text() for label in axis] for axis in ticks)
    source, target, previous = ["w3", "w4", "w5", "</s>"], [*translation, "</s>"], ["</s>", *translation]
    expected = {"encoder": (source, source), "decoder": (target, previous), "encoder-decoder": (target, source)}
    assert labels == expected[kind]


def test_every_column_of_heads_has_its_keys_below(tmp_path):
    """The third and fourth of six heads have no other below them."""
    figure = tool.draw(torch.eye(3).expand(6, 3, 3), [*"abc"], [*"abc"], ["target", "source"], "a long title" * 9)
    heads = [axis for axis in figure.axes if axis.images]
    shown = [axis.xaxis.get_tick_params()["labelbottom"] for axis in heads]
    assert shown == [False, False, True, True, True, True]
    pictures.save(figure, tmp_path / "a.svg")
    width = float(re.search(r'width="([\d.]+)pt"', (tmp_path / "a.svg").read_text())[1])
    assert width > 72 * figure.get_figwidth(), "the title is cut off"


class Page(html.parser.HTMLParser):
    """The scripts of a page, and its tags."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags = [], []
        self.feed(text)
        self.content = json.loads(self.scripts[0])

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, {*dict(attributes)}))

    def handle_data(self, data):
        if self.lasttag == "script" and data.strip():
            self.scripts.append(data)


@pytest.mark.parametrize(
    "family, options, first",
    [
        ("vaswani_transformer", [], [2, 1]),
        ("weighted_relative_transformer", ["--attention", "encoder", "--layer", "1"], [0, 0]),
    ],
)
def test_page_has_every_attention(saved, tmp_path, printed, family, options, first):
    _, path, data = saved(f"{family}_base", branches=2, branch_weights_init="random")
    more = ["--sentence", "w3 w4 w5", "--pretokenised", *options, "--output", tmp_path / "a.HTML"]
    translation, page = printed(tool.main, path, "--data", data, *more).splitlines()
    assert page == str(tmp_path / "a.HTML")
    content = Page((tmp_path / "a.HTML").read_text(encoding="utf-8")).content
    assert (content["title"], content["texts"]) == (f"Attention of {path}", ["w3 w4 w5", translation])
    assert content["first"] == first
    assert len(content["colours"]) == 7 and "#000000" not in content["colours"]  # which a dark page hides

    translator = Translator(path, data=data, pretokenised=True)
    (model,), source = translator.models, translator.binarise("w3 w4 w5")
    target = translator.beam_search([source])[0][0]["tokens"]
    read, written, before = ["w3", "w4", "w5", "</s>"], [*translation.split(), "</s>"], ["</s>", *translation.split()]
    words = {"encoder": [read, read], "decoder": [written, before], "encoder-decoder": [written, read]}
    assert [one["name"] for one in content["attentions"]] == [*ATTENTIONS]
    for one in content["attentions"]:
        name, modules = one["name"], attentions_of(model, one["name"])
        assert [one["queries"], one["keys"]] == words[name]
        assert (one["query"], one["key"]) == (ATTENTIONS[name].query, ATTENTIONS[name].key)
        all_weights = attention_weights(model, modules, source, target)
        for layer, module, weights in zip(one["layers"], modules, all_weights, strict=True):
            torch.testing.assert_close(torch.tensor(layer["weights"]) / 1000, weights, atol=5.1e-4, rtol=0)
            branched = family.startswith("weighted") and name != "encoder-decoder"
            expected = [module.kappa[head // 2].item() for head in range(4)] if branched else None
            assert layer["kappa"] == expected


HOSTILE = ["</script><script>alert(1)</script>", "<!--", "<b>", "&amp;", "&", "שלום", "{{content}}", "\u2028", "\"'\\"]


def hostile_page():
    modules, weights = [torch.nn.Module()], [torch.eye(len(HOSTILE))[None]]
    attention = attention_page.attention("encoder", HOSTILE, HOSTILE, modules, weights)
    return attention_page.page(HOSTILE[0], (" ".join(HOSTILE), HOSTILE[2]), [attention], (0, 0))


def test_no_word_is_markup():
    plain = attention_page.page("", ("", ""), [], (0, 0))
    page = Page(hostile_page())
    assert page.tags == Page(plain).tags and len(page.scripts) == 2
    assert page.content["title"] == HOSTILE[0]
    assert page.content["attentions"][0]["queries"] == page.content["attentions"][0]["keys"] == HOSTILE


def test_page_needs_nothing_beside_itself():
    text = hostile_page()
    assert not {"src", "href", "action"} & set.union(*(attributes for _, attributes in Page(text).tags))
    assert not [word for word in ("http:", "https:", "url(", "@import", "import(", "fetch(") if word in text]


# As much of a browser as the page's script uses.
BROWSER = """
class Node {
  children = []; on = {}; style = { setProperty() {} }; classList = { toggle() {} };
  get firstChild() { return this.children[0]; }
  get lastChild() { return this.children.at(-1); }
  append(child) { this.children.push(child); }
  replaceChildren() { this.children = []; }
  addEventListener(name, heard) { this.on[name] = heard; }
  setAttribute() {}
  insertAdjacentHTML() {}
}
const nodes = { content: Object.assign(new Node(), { textContent: CONTENT }) };
const getElementById = (id) => (nodes[id] ??= new Node());
const document = { getElementById, createElement: () => new Node(), addEventListener() {} };
"""
SEEN = """{
const seen = () => [nodes.lines.innerHTML, nodes.said.textContent];
const word = (id, number) => nodes[id].children[number].firstChild;
const all = seen();
word("queries", 0).on.mouseenter();
const query = seen(), percents = nodes.keys.children.map((item) => item.firstChild.lastChild.textContent);
word("queries", 0).on.mouseleave();
word("keys", 0).on.click();
const key = seen();
nodes.heads.children[1].firstChild.checked = false;
nodes.heads.children[1].firstChild.on.change();
const checked = (id) => nodes[id].children.map((label) => label.firstChild.checked);
const names = nodes.heads.children.map((label) => label.lastChild.firstChild);
const chosen = [checked("attention"), checked("layer")];
console.log(JSON.stringify({ all, query, percents, key, one: seen(), names, chosen }));
}"""


@pytest.mark.skipif(not shutil.which("node"), reason="no node, which runs the page's script")
def test_what_the_page_shows(tmp_path):
    """Head 1 leads from a to z and from b to x, head 2 from a to x, and from b to x (60%) and y (40%)."""
    weights = torch.tensor([[[0, 0, 1.0], [1, 0, 0]], [[1, 0, 0], [0.6, 0.4, 0]]])
    layers = [torch.nn.Module(), torch.nn.Module()]
    both = [attention_page.attention(name, [*"ab"], [*"xyz"], layers, [weights * 0, weights]) for name in ATTENTIONS]
    both[2]["layers"][1]["kappa"] = [0.3, 0.7]
    page = Page(attention_page.page("", ("", ""), both, (2, 1)))
    script = BROWSER.replace("CONTENT", json.dumps(json.dumps(page.content))) + page.scripts[1] + SEEN
    (tmp_path / "page.js").write_text(script, encoding="utf-8")
    done = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    def lines(shown):
        """(query, key) of the lines of each head, which are drawn beside each other: 1/8 above and below the middle."""
        ends = [map(float, pair) for pair in re.findall(r'y1="([\d.]+)" y2="([\d.]+)"', found[shown][0])]
        pairs = [[end - 0.5 for end in pair] for pair in ends]
        return [[(q - beside, k - beside) for q, k in pairs if q % 1 == beside % 1] for beside in (-0.125, 0.125)]

    def said(shown):
        return re.sub("[\u2068\u2069]", "", found[shown][1]).strip()

    assert lines("all") == [[(0, 2), (1, 0)], [(0, 0), (1, 0), (1, 1)]] and said("all") == ""
    assert lines("query") == [[(0, 2)], [(0, 0)]] and said("query") == "“a” → “x” 50%, “z” 50%"
    assert found["percents"] == ["50%", "", "50%"]
    assert lines("key") == [[(1, 0)], [(0, 0), (1, 0)]] and said("key") == "“x” ← “b” 80%, “a” 50%"
    assert lines("one") == [[(1, 0)], []] and said("one") == "“x” ← “b” 100%"
    assert found["names"] == ["1 · 0.30", "2 · 0.70"]
    assert found["chosen"] == [[False, False, True], [False, True]]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_sentence_is_prepared_as_the_training_data(saved, tmp_path, monkeypatch, capsys, lowercase, normalise):
    """Hyphens within words stay, case and punctuation are what the manifest says; a label has ' for &apos;."""
    _, path, data = saved("vaswani_transformer_base")
    codes = f"{CODES}& a\n&a p\n&ap o\n&apo s\n&apos ;</w>\n"
    write_preparation(data, codes=codes, lowercase=lowercase, normalise=normalise)
    known = (data / "dict.src.txt").read_text().replace("w45 ", "&apos; ").replace("w44 ", "W ")
    (data / "dict.src.txt").write_text(known)
    axes, seen, save, binarise = [], [], tool.save, Translator.binarise
    monkeypatch.setattr(tool, "save", lambda figure, path: axes.append(figure.axes[0]) or save(figure, path))
    monkeypatch.setattr(Translator, "binarise", lambda self, row: seen.append(row) or binarise(self, row))
    options = ["--attention", "encoder", "--output", str(tmp_path / "a.png")]
    tool.main([str(path), "--data", str(data), "--sentence", "W1 w1-w2, ' – w3", *options])
    w, dash = ("w" if lowercase else "W@@ "), "-" if normalise else "–"
    assert seen == [f"{w}1 w@@ 1@@ -@@ w2 , &apos; {dash} w@@ 3"]
    assert "'" in [label.get_text() for label in axes[0].get_xticklabels()]
    assert capsys.readouterr().out.endswith("a.png\n") and (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"--layer": "3"}, "--layer 3: the decoder has layers 1 to 2"),
        ({"--layer": "0", "--attention": "encoder"}, "--layer 0: the encoder has layers 1 to 2"),
        ({"--sentence": " "}, "0 subwords"),
        ({"--sentence": "w1 " * 1024}, "1024 subwords: give 1 to 1023"),
        ({"--output": "a.xyz"}, "a.xyz: matplotlib cannot write xyz"),
        ({"--output": "nowhere/a.png"}, "there is no folder .*nowhere: make it"),
        ({"--output": "nowhere/a.html"}, "there is no folder .*nowhere: make it"),
        ({"checkpoint": "nowhere.pt"}, "there is no checkpoint nowhere.pt"),
        ({"data": "."}, "no dictionaries .*: name"),
        ({"prepared": "no"}, "no manifest.json beside .*--pretokenised"),
        ({"arch": "transformer"}, "encoder layer 1 has no attention of this user directory: train"),
    ],
)
def test_bad_input_is_one_line(saved, tmp_path, monkeypatch, mistake, words, refusal):
    options = {"--sentence": "w3 w4", "--output": "a.png", **mistake}
    _, path, data = saved(options.pop("arch", "vaswani_transformer_base"))
    monkeypatch.chdir(tmp_path)
    places = [options.pop("checkpoint", path), "--data", options.pop("data", data)]
    split = [] if options.pop("prepared", None) else ["--pretokenised"]
    refusal(tool.main, *places, *split, *[word for pair in options.items() for word in pair], match=words)
    assert not any(tmp_path.glob("a.*"))
