"""Importing this module

1. refuses a fairseq whose encoder skips custom layers at inference,
2. lets torch load fairseq's checkpoints without disabling its weights-only safety,
3. registers architectures, optimizer, criterion and task with fairseq,
4. makes fairseq's commands report an InputError in one line,
5. turns cuDNN's attention off,
6. lets fairseq save and copy a checkpoint whole or not at all, and average shared parameters once,
7. refuses several processes that fairseq would not start,
8. leaves the program's log as it is.
"""

import logging

import torch

from .checkpoints.compatibility import allow_fairseq_checkpoints, refuse_bypassing_fairseq
from .errors import report_input_errors_in_one_line

refuse_bypassing_fairseq()
allow_fairseq_checkpoints()
report_input_errors_in_one_line()
# In half precision on an H200, torch 2.11 prefers cuDNN's kernel. It compiles a plan for each new length, and batches
# differ in length: forward and backward take 136 ms, 0.7 ms once there is a plan, and 0.3 ms with the other kernels.
torch.backends.cuda.enable_cudnn_sdp(False)

root = logging.getLogger()
handlers, level = root.handlers[:], root.level

from fairseq import checkpoint_utils, file_io  # noqa: E402  (they must follow the check)

from . import task  # noqa: E402,F401
from .training import criterion, optimizer  # noqa: E402,F401
from .training.last_checkpoint import copy_whole, save_anew  # noqa: E402
from .training.moving_average import EMA, step_once  # noqa: E402
from .training.processes import start_processes, utils  # noqa: E402
from .transformer import architectures  # noqa: E402,F401

# fairseq's import sets up the log of the whole program, with the debugging lines of all libraries.
root.handlers[:] = handlers
root.setLevel(level)

EMA._step_internal = step_once
utils.call_main = start_processes
if not file_io.IOPathManager:  # with which a path may be remote
    file_io.PathManager.copy = staticmethod(copy_whole)
    checkpoint_utils._torch_persistent_save = save_anew
