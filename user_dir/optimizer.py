"""--optimizer fused_adam: Adam (Kingma and Ba 2015) in one kernel for all parameters, from torch.

The update is that of fairseq's `adam` (decoupled weight decay, as in torch's AdamW) but for where ε stands: added to
√(v/(1 − β₂ᵗ)) as in the paper, where fairseq adds it to √v.
"""

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig


@register_optimizer("fused_adam", dataclass=FairseqAdamConfig)
class FusedAdam(FairseqAdam):
    """fairseq's `adam` with its options; fairseq's own is a Python loop of small kernels for each parameter.

    Raises:
        NotImplementedError: for --fp16-adam-stats, which needs fairseq's own
    """

    def __init__(self, cfg: FairseqAdamConfig, params):
        FairseqOptimizer.__init__(self, cfg)
        if cfg.fp16_adam_stats:
            raise NotImplementedError("--fp16-adam-stats needs --optimizer adam")
        self._optimizer = torch.optim.AdamW(params, fused=True, **self.optimizer_config)
