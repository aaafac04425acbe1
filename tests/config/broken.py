"""A module that cannot be imported."""

raise ValueError("nothing can be imported here")
