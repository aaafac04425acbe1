"""The configuration of a run: the dataclasses of a job, how they are read, checked and described."""
