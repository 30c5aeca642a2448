"""The Transformer's attention (Vaswani et al. 2017)."""
