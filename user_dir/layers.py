"""Encoder and decoder layers: fairseq's post-norm and pre-norm layers with our attention.

    post-norm: x ← LayerNorm(x + Dropout(Sublayer(x)))     (Vaswani et al. 2017, section 5.4; the default)
    pre-norm:  x ← x + Dropout(Sublayer(LayerNorm(x)))     (--encoder-normalize-before, --decoder-normalize-before)
"""

from fairseq.modules import transformer_layer

from .attention import MultiheadAttention
from .autocast import autocast
from .config import VariantConfig
from .relative_positions import RelativeMultiheadAttention


def build_attention(embed_dim: int, heads: int, cfg: VariantConfig, **kwargs) -> MultiheadAttention:
    """Multi-head attention with the sizes, the dropout and, for self-attention, the relative positions that `cfg` asks for."""
    options = {
        "key_dim": cfg.attention_key_dim,
        "value_dim": cfg.attention_value_dim,
        "dropout": cfg.attention_dropout,
        **kwargs,
    }
    if cfg.relative_positions == "neither" or not kwargs.get("self_attention"):
        return MultiheadAttention(embed_dim, heads, **options)
    return RelativeMultiheadAttention(
        embed_dim,
        heads,
        distance=cfg.relative_distance,
        shared=cfg.relative_tables == "shared",
        keys=cfg.relative_positions in ("keys_and_values", "keys"),
        values=cfg.relative_positions in ("keys_and_values", "values"),
        **options,
    )


class TransformerEncoderLayer(transformer_layer.TransformerEncoderLayerBase):
    """Self-attention, then FFN(x) = max(0, xW₁ + b₁)W₂ + b₂ (Vaswani et al. 2017, eq. 2)."""

    def build_self_attention(self, embed_dim, cfg):
        return build_attention(embed_dim, cfg.encoder.attention_heads, cfg, self_attention=True)

    @autocast
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class TransformerDecoderLayer(transformer_layer.TransformerDecoderLayerBase):
    """Masked self-attention, encoder–decoder attention, then the FFN."""

    def __init__(self, cfg, no_encoder_attn=False):
        self.cfg = cfg
        super().__init__(cfg, no_encoder_attn)

    def build_self_attention(self, embed_dim, cfg, **kwargs):
        return build_attention(embed_dim, cfg.decoder.attention_heads, cfg, self_attention=True)

    def build_encoder_attention(self, embed_dim, cfg):
        return build_attention(
            embed_dim,
            cfg.decoder.attention_heads,
            cfg,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            encoder_decoder_attention=True,
        )

    @autocast
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)
