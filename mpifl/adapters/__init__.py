"""Clients of other frameworks as clients with custom training loops; each module imports its framework."""
