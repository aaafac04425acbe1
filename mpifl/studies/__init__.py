"""Studies: many runs of one job with varied keys, described by one file, and what becomes of them."""
