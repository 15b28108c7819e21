"""The numbers by which Flower's messages name the process that makes them.

Checked against Flower 1.41 and 1.42: `Message` reads them from `TaskIdentity`, which Flower's own
programs set.
"""

from flwr.supercore.task_identity import TaskIdentity


def identify_process(task: int = 1, run: int = 0, node: int = 0) -> None:
    """Lets this process make messages; the defaults are those of Flower's simulations."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node
