"""The Transformer (Vaswani et al. 2017) and its variants as a fairseq user directory.

``fairseq-train DATA --user-dir user_dir --arch vaswani_transformer_base`` imports this package; importing it

1. refuses a fairseq whose encoder skips custom layers at inference,
2. lets torch load fairseq's checkpoints without switching its weights-only safety off,
3. registers the architectures, the optimizer, the criterion and the task of this package.
"""

from .compatibility import allow_fairseq_checkpoints, refuse_bypassing_fairseq

refuse_bypassing_fairseq()
allow_fairseq_checkpoints()

from . import architectures, criterion, generator, optimizer  # noqa: E402,F401  (they register; must follow the check)
