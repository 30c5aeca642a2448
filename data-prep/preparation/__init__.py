"""From a corpus to a data-bin, for prepare.py. pipeline.py has the stages in order; each uses these modules:

    raw        corpora (of the registry, or own files), fetching, archives, markup; extracting with splitting, cleaning
    tok        tokenising
    clean      cleaning
    bpe        subwords; earlier, whose codes --like takes
    data-bin   binarising

All of them use stages (which skips finished ones), parallel, locking, text and errors. treebank.py has trees.
"""
