"""Checkpoints: the records of a snapshot, and the files that hold them."""
