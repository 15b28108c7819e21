"""What is to be run: the paper's experiments as data, their scales, and the resulting runs."""
