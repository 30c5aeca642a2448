"""Checkpoints as files: reading them, and refusing those that could do harm."""
