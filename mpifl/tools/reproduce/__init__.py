"""`mpifl reproduce`: the studies of papers, and pages that show their results beside the published ones."""
