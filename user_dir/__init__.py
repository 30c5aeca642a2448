"""The Transformer (Vaswani et al. 2017) and its variants as a fairseq user directory.

``fairseq-train DATA --user-dir user_dir --arch vaswani_transformer_base`` imports this package, and so registers with
fairseq what is here (:mod:`.registration`). In Python import fairseq first, or what needs it from here: without fairseq
nothing is registered, so that a tool that scores or draws starts in a second and not in ten.
"""

import sys

if "fairseq" in sys.modules:
    from . import registration  # noqa: F401
