"""Speed: products in another order, dropout with fewer random words, bfloat16 products. Only rounding differs."""
