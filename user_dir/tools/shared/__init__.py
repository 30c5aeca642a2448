"""Code that several tools use."""
