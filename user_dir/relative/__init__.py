"""Relative positions (Shaw et al. 2018)."""
