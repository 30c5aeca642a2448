"""Translation of text: preparation, models and search together."""
