"""What many runs gave: read back, gathered by row over the seeds, beside what the paper prints."""
