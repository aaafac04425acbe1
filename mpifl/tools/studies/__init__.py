"""Studies: runs of one job with varied keys, described by one file; their index, selection and report."""
