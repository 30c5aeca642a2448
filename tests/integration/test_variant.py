"""The variant of user_dir/README.md, from a folder of its own: as it stands there it trains, decodes and is right."""

import re
import sys

import pytest
import torch

from user_dir.architectures import FAMILIES
from user_dir.layers import SELF_ATTENTIONS

from support import PROJECT, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """alibi/__init__.py, out of the page's one block of Python that has a family."""
    page = (PROJECT / "user_dir/README.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "add_family(" in block)
    folder = tmp_path_factory.mktemp("variant") / "alibi"
    folder.mkdir()
    (folder / "__init__.py").write_text(code, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def alibi(folder):
    """The module; other tests do not see its family."""
    sys.path.insert(0, str(folder.parent))
    import alibi

    yield alibi
    sys.path.remove(str(folder.parent))
    FAMILIES.pop("alibi_transformer")
    SELF_ATTENTIONS.remove(alibi.AlibiAttention)


def test_equals_a_loop(alibi):
    torch.manual_seed(1)
    module = alibi.AlibiAttention(8, 2, steepest=8.0, self_attention=True).double()
    q, k, v = torch.randn(3, 2, 2, 5, 4, dtype=torch.double)
    heads, _ = module.attend(q, k, v, torch.full((5, 5), float("-inf"), dtype=torch.double).triu(1), False)
    for b in range(2):
        for h, slope in enumerate((2**-4, 2**-8)):
            for i in range(5):
                scores = torch.stack([q[b, h, i] @ k[b, h, j] / 2 - slope * (i - j) for j in range(i + 1)])
                torch.testing.assert_close(heads[b, h, i], scores.softmax(0) @ v[b, h, : i + 1])


@pytest.mark.parametrize("options", [{}, {"branched_attention": "encoder_decoder"}], ids=["alone", "with branches"])
def test_cached_decoding_equals_full(alibi, build, batch, options):
    model = build("alibi_transformer_base", **options).double()
    assert isinstance(model.encoder.layers[0].self_attn, alibi.AlibiAttention)
    encoder_out = model.encoder(batch["src_tokens"], batch["src_lengths"])
    tokens, state = batch["prev_output_tokens"][[0, 1, 3]], {}
    encoder_out = model.encoder.reorder_encoder_out(encoder_out, torch.tensor([0, 1, 3]))
    full, _ = model.decoder(tokens, encoder_out=encoder_out)
    for length in range(1, tokens.size(1) + 1):
        step, _ = model.decoder(tokens[:, :length], encoder_out=encoder_out, incremental_state=state)
        torch.testing.assert_close(step[:, 0], full[:, length - 1])


def test_trains_and_decodes_by_fairseqs_commands(folder, copies, tmp_path):
    options = f"""--user-dir {folder} --arch alibi_transformer_tiny --alibi-steepest 4 --encoder-layers 1
        --decoder-layers 1 --optimizer fused_adam --lr 5e-3 --max-tokens 500 --max-update 20 --disable-validation
        --no-epoch-checkpoints --save-dir {tmp_path}"""
    run("fairseq-train", copies, *options.split())
    path = tmp_path / "checkpoint_last.pt"
    assert torch.load(path)["cfg"]["model"].alibi_steepest == 4
    done = run("fairseq-generate", copies, "--user-dir", folder, "--path", path, "--required-batch-size-multiple", "1")
    assert len(re.findall(r"^H-", done.stdout, re.MULTILINE)) == 50
