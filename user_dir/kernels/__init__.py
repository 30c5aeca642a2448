"""Faster or smaller computations; without this folder the results would be the same."""
