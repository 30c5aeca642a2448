"""Checkpoint files: reading them, and refusing harmful ones."""
