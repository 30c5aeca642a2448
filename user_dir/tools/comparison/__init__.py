"""The statistics and the report of `compare`."""
