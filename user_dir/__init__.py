"""The Transformer (Vaswani et al. 2017) and its variants as a fairseq user directory.

``fairseq-train DATA --user-dir user_dir --arch vaswani_transformer_base`` imports this package, which registers its
architectures with fairseq (:mod:`.registration`). In Python, first import fairseq, :mod:`.translator` or
:mod:`.variants`. Without fairseq nothing is registered, so that a tool that scores or plots starts in a second.
"""

import sys

if "fairseq" in sys.modules:
    from . import registration  # noqa: F401
