"""What is run: the paper's experiments as data, their scales, and the runs that follow."""
