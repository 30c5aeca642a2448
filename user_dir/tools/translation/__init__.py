"""The choice of what computes for `translate`."""
