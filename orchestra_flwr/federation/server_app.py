"""Flower's ServerApp for `flwr run .`: the same federation as run_sim.py, started by Flower."""

import shlex

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from orchestra_flwr.config import load_config
from orchestra_flwr.federation.client.answers import ran_out_of_memory
from orchestra_flwr.federation.population import check_before_images, evaluation_dataset
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.federation.server.loop import FederationRun
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.federation.simulation import load_checked
from orchestra_flwr.federation.split_record import recorded_split
from orchestra_flwr.flower.object_store import Broadcast
from orchestra_flwr.flower.streaming_grid import StreamingGrid
from orchestra_flwr.reporting import RunFolder, check_trackers, make_progress

app = ServerApp()
WINDOW = 16  # messages under way; Flower's engine decides how many clients run at the same time


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation that the run config's `overrides` describe, as on the command line."""
    config = load_config(shlex.split(str(context.run_config.get("overrides", ""))), all_read=True)
    check_trackers(config)
    RunFolder.check(config)
    check_before_images(config)
    named, population = load_checked(config)
    with (
        RunFolder.open(config) as folder,
        make_progress(config.logging.progress, config.federation.rounds) as progress,
        recorded_split(named, population, folder),
    ):
        progress.message(f"run folder: {folder.path.resolve()}")
        streaming = StreamingGrid(grid, WINDOW, prepare=Broadcast(), retry=ran_out_of_memory)
        members = SimulatedMembers(streaming, population.parts, population.split)
        images = evaluation_dataset(named, population)
        evaluator = Evaluator(named, images, progress.images_evaluated)
        FederationRun(
            streaming, named, members, evaluator=evaluator, folder=folder, progress=progress
        ).run()
