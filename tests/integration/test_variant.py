"""The variant of user_dir/variant.md, from a folder of its own: as it stands there it trains, decodes and is right."""

import argparse
import dataclasses
import re
import sys

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY

from user_dir.errors import InputError
from user_dir.transformer.architectures import FAMILIES
from user_dir.transformer.layers import SELF_ATTENTIONS

from comparing import assert_decodes_word_by_word, future
from support import PROJECT, SMALL, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """alibi/__init__.py, out of the page's one block of Python."""
    page = (PROJECT / "user_dir/variant.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    folder = tmp_path_factory.mktemp("variant") / "alibi"
    folder.mkdir()
    (folder / "__init__.py").write_text(code, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def alibi(folder):
    """The module; other tests do not see its family. A process may leave this file's tests and return to them."""
    sys.path.insert(0, str(folder.parent))
    import alibi

    FAMILIES["alibi_transformer"] = vars(alibi).setdefault("family", FAMILIES.get("alibi_transformer"))
    SELF_ATTENTIONS["--alibi-steepest"] = alibi.AlibiAttention
    yield alibi
    sys.path.remove(str(folder.parent))
    FAMILIES.pop("alibi_transformer")
    del SELF_ATTENTIONS["--alibi-steepest"]


RESTRICTED = {"restricted_attention": "both", "neighbourhood": 5}
BRANCHES = {"branched_attention": "both"}


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("options", [{}, RESTRICTED], ids=["to all", "restricted"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_equals_a_loop(alibi, build, side, options, need_weights):
    """Output for 40 positions, which are two blocks and a part of one where attention is restricted."""
    model = build("alibi_transformer_base", attention_dropout=0.0, **options).double()
    module, x = getattr(model, side).layers[0].self_attn, torch.randn(40, 2, 16, dtype=torch.double)
    q, k, v = (projection(x).unflatten(2, (4, 4)) for projection in (module.q_proj, module.k_proj, module.v_proj))
    expected = torch.empty_like(q)
    for b in range(2):
        for h, slope in enumerate((2**-2, 2**-4, 2**-6, 2**-8)):
            for i in range(40):
                seen = [j for j in range(40) if not (side == "decoder" and j > i) and not (options and abs(i - j) > 2)]
                scores = torch.stack([q[i, b, h] @ k[j, b, h] / 2 - slope * abs(i - j) for j in seen])
                expected[i, b, h] = scores.softmax(0) @ v[seen, b, h]
    found, weights = module(x, x, x, attn_mask=future(40) if side == "decoder" else None, need_weights=need_weights)
    torch.testing.assert_close(found, module.out_proj(expected.flatten(2)))
    assert (weights is not None) == need_weights


@pytest.mark.parametrize("options", [{}, RESTRICTED, BRANCHES, RESTRICTED | BRANCHES], ids=str)
def test_cached_decoding_equals_full(alibi, build, batch, options):
    model = build("alibi_transformer_base", **options).double()
    for side in (model.encoder, model.decoder):
        assert isinstance(side.layers[0].self_attn, alibi.AlibiAttention)
    assert_decodes_word_by_word(model, model.encoder(batch["src_tokens"], batch["src_lengths"]), 7)


@pytest.mark.parametrize("steepest", [-1.0, float("inf"), float("nan")])
def test_an_impossible_value_is_one_line(alibi, build, steepest):
    with pytest.raises(InputError, match=f"--alibi-steepest {steepest}: give a number from 0"):
        build("alibi_transformer_base", alibi_steepest=steepest)


def test_an_architecture_has_to_be_made_of_the_variants_family(alibi, new_task):
    """Another family's does not set its option."""
    args = argparse.Namespace(arch="mine", **SMALL)
    ARCH_CONFIG_REGISTRY["vaswani_transformer_base"](args)
    with pytest.raises(InputError, match="this --arch does not set our options"):
        alibi.AlibiTransformer.build_model(args, new_task())


def test_an_option_that_the_family_leaves_out_has_its_default(alibi, build, monkeypatch):
    config = dataclasses.make_dataclass("Config", [("alibi_other", int, 7)], bases=(alibi.AlibiConfig,))
    monkeypatch.setattr(alibi.AlibiTransformer, "config", config)
    assert build("alibi_transformer_base").encoder.cfg.alibi_other == 7


@pytest.mark.parametrize("positions", ["keys", "values", "keys_and_values"])
def test_two_self_attentions_are_refused_by_name(alibi, build, positions):
    with pytest.raises(InputError, match="--relative-positions and --alibi-steepest .*: omit"):
        build("alibi_transformer_base", relative_positions=positions)


@pytest.mark.parametrize("method, options", [("output", BRANCHES), ("compute_heads", RESTRICTED)])
def test_an_override_that_would_not_be_called_is_refused(alibi, build, monkeypatch, method, options):
    monkeypatch.setattr(alibi.AlibiAttention, method, lambda *args: None, raising=False)
    option = f"--{next(iter(options)).replace('_', '-')}"
    with pytest.raises(InputError, match=f"{option} replaces {method}, which AlibiAttention overrides: omit {option}"):
        build("alibi_transformer_base", **options)


def test_trains_and_decodes_by_fairseqs_commands(folder, copies, tmp_path):
    options = f"""--user-dir {folder} --arch alibi_transformer_tiny --alibi-steepest 4 --encoder-layers 1
        --decoder-layers 1 --optimizer fused_adam --lr 5e-3 --max-tokens 500 --max-update 20 --disable-validation
        --no-epoch-checkpoints --save-dir {tmp_path}"""
    run("fairseq-train", copies, *options.split())
    path = tmp_path / "checkpoint_last.pt"
    assert torch.load(path)["cfg"]["model"].alibi_steepest == 4
    done = run("fairseq-generate", copies, "--user-dir", folder, "--path", path, "--required-batch-size-multiple", "1")
    assert len(re.findall(r"^H-", done.stdout, re.MULTILINE)) == 50
    page = (PROJECT / "user_dir/variant.md").read_text(encoding="utf-8")
    (code,) = re.findall(r'^python -c "(.*?)" runs/alibi', page, re.MULTILINE)
    words = [path, "w1 w2", "--data", copies, "--pretokenised"]
    (folder.parent / "page.py").write_text(code, encoding="utf-8")
    assert run("python", folder.parent / "page.py", *words, cwd=folder.parent).stdout.count("\n") == 1
