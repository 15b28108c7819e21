"""The paper's experiments as data, the sweep that runs them, and the report of many runs.

- `planning`: what is run.
- `sweep`: runs what is missing.
- `results`: what the runs gave, beside the paper.
- `report`: HTML and Markdown of it.
"""
