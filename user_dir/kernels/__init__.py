"""Faster computation: products in another order, dropout with fewer random words, bfloat16 products."""
