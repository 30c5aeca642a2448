"""From a corpus to a data-bin: what prepare.py calls. The stages stand in pipeline.py, in order; what each needs:

    raw        corpora (of the registry, or own files), fetching, archives, markup; extracting with splitting, cleaning
    tok        tokenising
    clean      cleaning
    bpe        subwords
    data-bin   binarising

Beneath all of them: stages (what is finished is skipped), parallel, locking, text, errors.
"""
