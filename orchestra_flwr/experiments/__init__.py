"""The paper's experiments as data, the sweep that runs them, and the report of many runs.

- `planning`: what is to be run.
- `sweep`: runs what is missing.
- `results`: what the runs yielded, beside the paper.
- `report`: the results as HTML and Markdown.
"""
