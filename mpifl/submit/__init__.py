"""Batch jobs: what a site asks for, and the scripts that run jobs and studies there."""
