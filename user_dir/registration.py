"""Importing this module

1. refuses a fairseq whose encoder skips custom layers at inference,
2. lets torch load fairseq's checkpoints without switching its weights-only safety off,
3. registers architectures, optimizer, criterion and task with fairseq.
"""

from .compatibility import allow_fairseq_checkpoints, refuse_bypassing_fairseq

refuse_bypassing_fairseq()
allow_fairseq_checkpoints()

from . import architectures, criterion, optimizer, task  # noqa: E402,F401  (they must follow the check)
