"""The Weighted Transformer (Ahmed et al. 2017): all of κ and α but the optimizer."""
