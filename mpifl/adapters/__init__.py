"""Clients of other frameworks as clients with training loops of their own; each module imports its framework."""
