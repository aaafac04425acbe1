"""The arena: methods compared in fixed scenarios with equal budgets, and submissions of further methods."""
