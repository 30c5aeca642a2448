"""From text to translations: preparation, models and search together."""
