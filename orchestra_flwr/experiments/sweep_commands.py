"""The commands for many runs: an experiment of the papers, and all combinations of values."""

import sys

from orchestra_flwr.commands.endings import RESUME_HINT, run_command, stop_on_sigterm
from orchestra_flwr.commands.experiment_line import read_experiment
from orchestra_flwr.commands.flags import Flags
from orchestra_flwr.config import config_to_yaml
from orchestra_flwr.console.printable import print_line
from orchestra_flwr.experiments.multirun import FOLDER, make_sweep, print_sweep
from orchestra_flwr.experiments.planning.description import experiment_names
from orchestra_flwr.experiments.planning.plan import make_plan
from orchestra_flwr.experiments.report.writer import write_report
from orchestra_flwr.experiments.sweep import jobs_of, of_other_code, run_jobs, run_plan
from orchestra_flwr.files import at_home


def run_experiment(flags: Flags) -> int:
    """Runs or lists an experiment and writes its report; the exit code.

    Raises:
        ConfigError: the line names no experiment, or keys that are wrong.
    """
    line = read_experiment(flags.overrides, experiment_names())
    plan, configs = make_plan(
        line.experiment,
        line.scale,
        seeds=line.seeds,
        only=line.only,
        extra=line.extra,
        transfer_root=line.transfer_root,
    )
    folder, jobs = line.folder, line.jobs or plan.settings.jobs

    if "--list" in flags:
        for root in {config.data.options.get("root") for config in configs.values()}:
            if root and not at_home(root).exists():
                print(f"warning: data.root={root} does not exist", file=sys.stderr)
        missing = {job.name: job for job in jobs_of(plan.rows, folder, plan)}
        for row in plan.rows:
            job = missing.get(row.run)
            state = "complete" if job is None else "begun" if job.was_begun else "missing"
            print(f"{state:9}{row.run}  {', '.join(row.values.values())}")
        return 0

    def work() -> int:
        failed = run_plan(plan, configs, folder, jobs, print_line)
        print(f"report: {write_report(folder)}")
        return 1 if failed else 0

    stop_on_sigterm()
    return run_command(work, RESUME_HINT, OSError, ValueError)


def run_several(flags: Flags) -> int:
    """Runs all combinations of values (`--multirun`); the exit code.

    Raises:
        ConfigError: one of them is wrong.
    """
    rows, configs = make_sweep(flags.overrides)
    if "--cfg" in flags:
        print("\n---\n".join(config_to_yaml(config) for config in configs.values()), end="")
        return 0

    def work() -> int:
        todo = jobs_of(rows, FOLDER)
        print(f"{len(configs)} runs, {len(configs) - len(todo)} complete already", flush=True)
        for line in of_other_code(configs, FOLDER):
            print_line(line)
        failed = run_jobs(todo, FOLDER, 1, print_line)
        print_sweep(rows, FOLDER)
        return 1 if failed else 0

    stop_on_sigterm()
    return run_command(work, RESUME_HINT, OSError, ValueError)
