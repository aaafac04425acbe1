"""The arena: methods in fixed scenarios, with as many configurations for each, and submissions of further methods."""
