"""The model that fairseq builds: each part is chosen from the configuration."""
