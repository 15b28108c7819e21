"""The output of one run: its folder, progress, table, plots and event files."""

from orchestra_flwr.reporting.environment import environment
from orchestra_flwr.reporting.evaluation_output import print_evaluation, write_evaluation
from orchestra_flwr.reporting.plots import plot_curves, plot_partition
from orchestra_flwr.reporting.progress import Progress, make_progress
from orchestra_flwr.reporting.run_folder import RunFolder
from orchestra_flwr.reporting.summary_table import print_summary, scores_table
from orchestra_flwr.reporting.tensorboard import TensorboardLog, summary_writer

__all__ = [
    "Progress",
    "RunFolder",
    "TensorboardLog",
    "environment",
    "make_progress",
    "plot_curves",
    "plot_partition",
    "print_evaluation",
    "print_summary",
    "scores_table",
    "summary_writer",
    "write_evaluation",
]
