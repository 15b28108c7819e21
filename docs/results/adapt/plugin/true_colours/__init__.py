"""A method of the comparison in docs/results/adapt.md, which the package does not have."""
