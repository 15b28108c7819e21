"""The commands: arguments to configuration, errors to one line and an exit code."""

from __future__ import annotations

import logging
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from orchestra_flwr import __version__
from orchestra_flwr.commands import temporary_folder, usage
from orchestra_flwr.commands.completion import completion_script
from orchestra_flwr.commands.endings import BEGINS_AGAIN, RESUME_HINT, run_command, stop_on_sigterm
from orchestra_flwr.commands.flags import COMMON, PROGRAM, SEVERAL, Flags, read_flags
from orchestra_flwr.config import (
    Composed,
    Config,
    ConfigError,
    EvaluateConfig,
    config_to_yaml,
    described,
    load,
    read_config_file,
)
from orchestra_flwr.console.json_lines import JsonFormatter, show_error
from orchestra_flwr.console.output_streams import ignore_closed_streams, never_wait_for_readers
from orchestra_flwr.console.phases import phase
from orchestra_flwr.console.printable import print_line, printable, printable_lines
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.extras import require_server
from orchestra_flwr.files import at_home
from orchestra_flwr.use.use_config import CompareConfig, EmbedConfig, LabelConfig

if TYPE_CHECKING:
    from orchestra_flwr.deployment.client_config import ClientConfig
    from orchestra_flwr.deployment.server_config import ServerConfig
    from orchestra_flwr.deployment.watch.top import TopConfig

C = TypeVar("C", bound=Composed)


def server_main(arguments: Sequence[str] | None = None) -> int:
    """`run_server.py`: a federation of real clients; returns the exit code."""
    from orchestra_flwr.deployment.server_config import ServerConfig

    return _command(ServerConfig, _serve, usage.SERVER, arguments, PROGRAM)


def submit_main(arguments: Sequence[str] | None = None) -> int:
    """`orchestra-submit`: adds a run to a server's queue; returns the exit code."""

    def work() -> None:
        allowed = ("--help", "--version", "--list")
        flags = read_flags(sys.argv[1:] if arguments is None else arguments, allowed)
        if "--version" in flags:
            print(f"orchestra-flwr {__version__}")
        elif "--help" in flags:
            print(usage.SUBMIT, end="")
        else:
            from orchestra_flwr.deployment.processes.submit_command import submit

            require_server(usage.program(usage.SUBMIT))
            submit(flags)

    ignore_closed_streams()
    return run_command(work, "stopped; nothing was submitted", OSError)


def client_main(arguments: Sequence[str] | None = None) -> int:
    """`run_client.py`: one real client; returns the exit code."""
    from orchestra_flwr.deployment.client_config import ClientConfig

    code = _command(ClientConfig, _take_part, usage.CLIENT, arguments, PROGRAM)
    return code if code < 128 else 0  # stopped by a signal: a client has no other end


def experiment_main(arguments: Sequence[str] | None = None) -> int:
    """`run_experiment.py`: runs an experiment and writes its report; returns the exit code."""
    from orchestra_flwr.experiments.planning.description import experiment_names

    def work() -> int:
        allowed = ("--help", "--version", "--list")
        flags = read_flags(sys.argv[1:] if arguments is None else arguments, allowed)
        if "--version" in flags:
            print(f"orchestra-flwr {__version__}")
        elif "--help" in flags or not (flags.overrides or flags.flags):
            names = ", ".join(experiment_names())
            print(usage.as_called(usage.EXPERIMENT, sys.argv[0]).format(names=names))
        else:
            require_server(usage.program(usage.EXPERIMENT))
            from orchestra_flwr.experiments.sweep_commands import run_experiment

            return run_experiment(flags)
        return 0

    ignore_closed_streams()
    return run_command(work, RESUME_HINT)


def evaluate_main(arguments: Sequence[str] | None = None) -> int:
    """`orchestra-evaluate`: evaluates a saved encoder; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["orchestra-evaluate", *arguments])
    return _command(EvaluateConfig, partial(_evaluate, command=command), usage.EVALUATE, arguments)


def top_main(arguments: Sequence[str] | None = None) -> int:
    """`orchestra-top`: how a server or client is doing; returns the exit code."""
    from orchestra_flwr.deployment.watch.top import TopConfig

    return _command(TopConfig, _top, usage.TOP, arguments)


def _command(
    kind: type[C],
    run: Callable[[C], int],
    text: str,
    arguments: Sequence[str] | None = None,
    allowed: Sequence[str] = COMMON,
) -> int:
    def work() -> int:
        flags = read_flags(sys.argv[1:] if arguments is None else arguments, allowed)
        if "--multirun" in flags and "--help" not in flags:
            require_server(usage.program(usage.SIM))
            from orchestra_flwr.experiments.sweep_commands import run_several

            return run_several(flags)
        shown = _shown(kind, text, flags)
        if shown is not None:
            print(shown, end="")
            return 0
        handler = _log_to_stderr()
        logging.getLogger("orchestra_flwr").setLevel(logging.INFO)
        stop_on_sigterm()
        if run in PROCESSES:
            never_wait_for_readers()
        if run is not _top:  # it needs none, and looks at machines whose disk is full
            temporary_folder.check()
        if run not in (_take_part, _top):
            require_server(usage.program(text))
        with _starting(run, flags.overrides):
            config = load(kind, flags.overrides, all_read=True)
            if _shows_json(config):
                handler.setFormatter(JsonFormatter())
            if run in PROCESSES:
                import_module(PROCESSES[run])
        warnings.filterwarnings("ignore", module="PIL")  # damaged EXIF data costs no image
        return run(config)

    ignore_closed_streams()
    before = "stopped before the run began" if run in (_simulate, _serve) else "stopped"
    return run_command(work, f"{before}; nothing was written", temporary_folder.MissingError)


def _shown(kind: type[Composed], text: str, flags: Flags) -> str | None:
    """The text that flags ask for instead of a run; None without such a flag."""
    if "--version" in flags:
        return f"orchestra-flwr {__version__}\n"
    if "--help" in flags:
        keys = described(kind, flags.overrides)
        if flags.groups:
            return "\n".join(map(keys.group, flags.groups))
        usage_lines = usage.as_called(text, sys.argv[0])
        return f"{usage_lines}\nEvery key with its value:\n\n{keys.every_key()}"
    if "--completion" in flags:
        words = [
            *described(kind, flags.overrides).words(),
            *(SEVERAL if kind is Config else PROGRAM),
        ]
        script = usage.script_of(text)
        return completion_script([usage.INSTALLED.get(script, script), script], words)
    if "--cfg" in flags:
        return config_to_yaml(load(kind, flags.overrides, all_read=True))
    return None


def _simulate(config: Config) -> int:
    # Heavy imports come after the check of the configuration.
    with _phase(config, "starting PyTorch and Flower"):
        from orchestra_flwr.federation.simulation import prepared

    with ExitStack() as until_the_end:
        with _phase(config, "preparing the network and the images"):
            run = until_the_end.enter_context(prepared(config))
        return _run_in_folder(config, run, usage.SIM)


def _phase(config: Config, text: str) -> AbstractContextManager[None]:
    """Progress before there is a run folder, unless it is switched off."""
    if config.logging.progress == "off" or _shows_json(config):
        return nullcontext()
    return phase(text, print_line)


def _starting(run: Callable[..., int], overrides: Sequence[str]) -> AbstractContextManager[None]:
    """Shows at once that a server or client imports, for seconds, on a busy machine a minute."""
    if run not in PROCESSES or _is_quiet(overrides):
        return nullcontext()
    return phase("starting PyTorch and Flower", print_line, at_once=True)


def _is_quiet(overrides: Sequence[str]) -> bool:
    """Whether the command, or the run that it resumes, shows no text; before all is read."""
    said = dict(text.partition("=")[::2] for text in overrides)
    saved: Any = None
    if "resume" in said:
        with suppress(ConfigError):  # which is said when all is read
            saved = read_config_file(at_home(said["resume"]) / "config.yaml").get("logging")
    shown = {f"logging.{k}": v for k, v in saved.items()} if isinstance(saved, dict) else {}
    shown |= said
    return shown.get("logging.progress") == "off" or shown.get("logging.format") == "json"


def _serve(config: ServerConfig) -> int:
    from orchestra_flwr.deployment.processes.server_process import check_run, check_server, serve
    from orchestra_flwr.reporting import Progress, RunFolder

    if config.queue is not None:
        return _serve_queue(config)
    RunFolder.check(config)
    with _phase(config, "preparing the network and the images"):
        check_server(config)
        check_run(config)

    def run(folder: RunFolder, progress: Progress) -> dict[str, Any]:
        return serve(config, folder, progress)

    return _run_in_folder(config, run, usage.SERVER, timed=True)


def _serve_queue(config: ServerConfig) -> int:
    from orchestra_flwr.deployment.processes.queue_server import serve_queue
    from orchestra_flwr.deployment.processes.server_process import check_server
    from orchestra_flwr.federation.errors import FederationError

    check_server(config)
    show = show_error if _shows_json(config) else None
    work = partial(serve_queue, config)
    return run_command(work, RESUME_HINT, OSError, FederationError, show=show)


def _run_in_folder(
    config: Config, run: Callable[[Any, Any], dict[str, Any]], text: str, *, timed: bool = False
) -> int:
    from orchestra_flwr.reporting import RunFolder

    try:
        with RunFolder.open(config, program=usage.shell_command(text)) as folder:
            return _run_and_show(config, folder, run, timed)
    except OSError as error:
        what = "used" if config.resume else "made"
        raise ConfigError(f"the run folder cannot be {what}: {error}") from None


def _run_and_show(
    config: Config, folder: Any, run: Callable[[Any, Any], dict[str, Any]], timed: bool
) -> int:
    from orchestra_flwr.federation.errors import FederationError
    from orchestra_flwr.reporting import make_progress

    def work() -> None:
        logging, rounds = config.logging, config.federation.rounds
        with make_progress(
            logging.progress, rounds, timed=timed, format=logging.format
        ) as progress:
            progress.message(f"run folder: {folder.path}")
            if folder.note:
                progress.message(folder.note)
            summary = run(folder, progress)
        progress.finished(summary, folder.path)

    def advice(error: Exception) -> str:
        return str(folder.how_to_continue(getattr(error, "resume_round", None)))

    show, stopped = show_error if _shows_json(config) else None, folder.how_it_stopped
    return run_command(work, stopped, OSError, FederationError, advice=advice, show=show)


def _evaluate(config: EvaluateConfig, command: str) -> int:
    from orchestra_flwr.evaluation.saved import EvaluationError, evaluate_saved
    from orchestra_flwr.reporting import check_place, print_evaluation, write_evaluation

    folder = config.beside("evaluation")
    check_place(folder, config.encoder)

    def work() -> None:
        results = {**evaluate_saved(config), "command": command}
        print_evaluation(results)  # before it is written: a full disk loses none of it
        print(printable(str(write_evaluation(folder, results, config.name))))

    return run_command(work, "stopped; nothing was written", OSError, EvaluationError)


def _embed(config: EmbedConfig) -> int:
    from orchestra_flwr.use.embed_command import run_embed

    return run_command(partial(run_embed, config), RESUME_HINT, OSError, ValueError)


def _label(config: LabelConfig) -> int:
    from orchestra_flwr.use.label_command import run_label

    return run_command(partial(run_label, config), RESUME_HINT, OSError, ValueError)


def _compare(config: CompareConfig) -> int:
    from orchestra_flwr.use.compare_command import run_compare

    return run_command(partial(run_compare, config), BEGINS_AGAIN, OSError, ValueError)


def _export(config: ExportConfig) -> int:
    from orchestra_flwr.export.detectron2 import export_to_detectron2
    from orchestra_flwr.export.export_table import print_export
    from orchestra_flwr.export.exporter import export_saved
    from orchestra_flwr.export.hub_folder import HubError, export_to_hub
    from orchestra_flwr.export.peft_adapter import export_to_peft
    from orchestra_flwr.export.programs import ExportError
    from orchestra_flwr.export.timm_folder import export_to_timm
    from orchestra_flwr.reporting import check_place

    check_place(config.exported, config.encoder)
    folders = {
        "hub": export_to_hub,
        "detectron2": export_to_detectron2,
        "timm": export_to_timm,
        "peft": export_to_peft,
    }

    def work() -> None:
        if config.format in folders:
            print(printable(str(folders[config.format](config))))
        else:
            print_export(export_saved(config), config.exported)

    # Some files may already be written, or on the hub.
    return run_command(work, BEGINS_AGAIN, OSError, ValueError, ExportError, HubError)


def _take_part(config: ClientConfig) -> int:
    from orchestra_flwr.deployment.processes.client_process import run_client

    def work() -> None:
        with suppress(KeyboardInterrupt):
            run_client(config)

    return run_command(work, "", OSError, show=show_error if _shows_json(config) else None)


def _top(config: TopConfig) -> int:
    from orchestra_flwr.deployment.watch.top import run_top

    def work() -> None:
        with suppress(KeyboardInterrupt):
            run_top(config)

    return run_command(work, "", OSError, ValueError)


# The commands whose configuration needs no heavy import; each returns its exit code.
main = partial(_command, Config, _simulate, usage.SIM, allowed=SEVERAL)
embed_main = partial(_command, EmbedConfig, _embed, usage.EMBED)
label_main = partial(_command, LabelConfig, _label, usage.LABEL)
compare_main = partial(_command, CompareConfig, _compare, usage.COMPARE)
export_main = partial(_command, ExportConfig, _export, usage.EXPORT)

# The modules behind commands that run for long.
PROCESSES: dict[Callable[..., int], str] = {
    _serve: "orchestra_flwr.deployment.processes.server_process",
    _take_part: "orchestra_flwr.deployment.processes.client_process",
}


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def _log_to_stderr() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    return handler


def _shows_json(config: Composed) -> bool:
    """Whether a run or client logs JSON, for programs."""
    return getattr(getattr(config, "logging", None), "format", "text") == "json"
