"""The Transformer (Vaswani et al. 2017) and its variants as a fairseq user directory.

``fairseq-train DATA --user-dir user_dir --arch vaswani_transformer_base`` imports this package, which registers its
architectures with fairseq (:mod:`.registration`). In Python, first import fairseq, or a module of this package that
needs it. Without fairseq nothing is registered, so that a tool that scores or plots starts in a second, not in ten.
"""

import sys

# Modules that users of version 0.1.0 were told to import, and their new places.
MOVED = dict.fromkeys(("architectures", "layers", "masks", "model"), "variants")
MOVED["exported_translator"] = "serving.exported_translator"


class Moved:
    """An import hook, which Python asks for modules that it does not find elsewhere."""

    @staticmethod
    def find_spec(name: str, path=None, target=None):
        package, _, module = name.rpartition(".")
        if package == __name__ and module in MOVED:
            raise ModuleNotFoundError(f"{name} has moved: import from {package}.{MOVED[module]}", name=name)


sys.meta_path.append(Moved)

if "fairseq" in sys.modules:
    from . import registration  # noqa: F401
