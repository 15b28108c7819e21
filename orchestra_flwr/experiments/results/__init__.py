"""Results of many runs: read back, grouped by row over the seeds, beside the paper's numbers."""
