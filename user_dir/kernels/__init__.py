"""Faster or smaller ways to the same results; without this folder everything computes the same."""
