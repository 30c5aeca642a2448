"""Beam search and its settings."""
