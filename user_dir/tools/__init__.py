"""Commands about trained models: python -m user_dir.tools.NAME"""

import pathlib
import signal
import sys

# While a command imports torch and fairseq, for seconds, Ctrl-C ends it at once (shared/command.py takes it from then
# on). It would end in a traceback, or get lost: scikit-learn, SciPy and others go on after any error in an import.
named = pathlib.Path(sys.argv[0] if sys.argv else "").name
if (named == "-m" or named.startswith("nmt-")) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
