"""The arena: methods in fixed scenarios, with equal numbers of configurations, and submissions of further methods."""
