"""The version of mpifl."""

__version__ = "0.1.0"
