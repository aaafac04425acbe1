"""Batch jobs: the settings of a computing centre, and the scripts that run jobs and studies there."""
