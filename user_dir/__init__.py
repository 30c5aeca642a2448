"""The Transformer (Vaswani et al. 2017) and its variants as a fairseq user directory.

``fairseq-train DATA --user-dir user_dir --arch vaswani_transformer_base`` imports this package, and so registers with
fairseq what is here (:mod:`.registration`). In Python import fairseq first, or what needs it from here: without fairseq
nothing is registered, so that a tool that scores or draws starts in a second and not in ten.
"""

import sys

# Modules that the pages of version 0.1.0 had users import, and where their contents are now.
MOVED = dict.fromkeys(("architectures", "layers", "masks", "model"), "variants")
MOVED["exported_translator"] = "serving.exported_translator"


class Moved:
    """Python asks it for a module that is nowhere else."""

    @staticmethod
    def find_spec(name: str, path=None, target=None):
        package, _, module = name.rpartition(".")
        if package == __name__ and module in MOVED:
            raise ModuleNotFoundError(f"{name} has moved: import from {package}.{MOVED[module]}", name=name)


sys.meta_path.append(Moved)

if "fairseq" in sys.modules:
    from . import registration  # noqa: F401
