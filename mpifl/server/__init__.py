"""Rank 0: the server loop, and what watches, saves and resumes a run."""
