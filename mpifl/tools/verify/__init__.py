"""Checks of a run file: that it is undamaged, that its tables agree, that a replay computes the same."""
