"""The Weighted Transformer (Ahmed et al. 2017): everything about κ and α except the optimizer."""
