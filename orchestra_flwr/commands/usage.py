"""The usage texts of the commands, for --help."""

import sys
from pathlib import Path

# Installed programs, by the names of those in a checkout.
INSTALLED = {
    "run_sim.py": "orchestra-sim",
    "run_server.py": "orchestra-server",
    "run_client.py": "orchestra-client",
    "run_experiment.py": "orchestra-experiment",
}


def as_called(text: str, program: str) -> str:
    """A text with programs named as they were called; `program` is `sys.argv[0]`."""
    name = Path(program).name
    if name in INSTALLED.values():
        for script, installed in INSTALLED.items():
            text = text.replace(script, installed)
    elif program.endswith(("orchestra_flwr/__main__.py", "orchestra_flwr/cli.py")):
        text = text.replace("run_sim.py", "python -m orchestra_flwr")
    return text


def script_of(text: str) -> str:
    """The name of a text's program."""
    return text.removeprefix("usage: ").split()[0]


def program(text: str) -> str:
    """The name of a text's program, as it was called."""
    return as_called(script_of(text), sys.argv[0])


def shell_command(text: str) -> str:
    """A text's program as it is typed, with `python` before a script of a checkout."""
    name = program(text)
    return f"python {name}" if name.endswith(".py") else name


_HELP = """\
  --help         this text, and every key with its meaning and its value under the given ones
"""
_ONE_GROUP = """\
  --help data    one group or section alone: its choices and its keys
"""
_OTHERS = """\
  --cfg job      the composed configuration; nothing is run
  --version      of this program
"""
_COMMON = _HELP + _ONE_GROUP + _OTHERS
_COMPLETION = """\
  --completion   a script for tab completion in bash and zsh: eval "$(... --completion)"
"""
_RUN_CODES = """\
Exit code 0: done, 1: the run failed, 2: the configuration is wrong, or the run folder is in use or
damaged, and nothing was written, 130 or 143: stopped by Ctrl-C or SIGTERM; it can be continued
or ended.
"""
_CODES = """\
Exit code 0: done, 1: it failed, 2: the configuration is wrong and nothing was written,
130: stopped, 143: stopped by SIGTERM.
"""
SIM = f"""\
usage: run_sim.py [key=value ...]      train an encoder in a simulated federation

  run_sim.py                                          digits, 10 clients, about two minutes
  run_sim.py data=image_folder data.root=photos.zip   your own images
  run_sim.py data=cifar10                             the paper's cross-device run
  run_sim.py resume=outputs/<name>/<date_time>        continue an interrupted run
  run_sim.py resume=... federation.rounds=40          give a finished one more rounds, or end a
                                                      stopped one that has done 40
  run_sim.py resume=... resume_round=12               go back to one of the last three checkpoints
  run_sim.py init=outputs/<name>/<date_time>          begin with the encoder of another run
  run_sim.py -m method=simclr,orchestra seed=0,1      four runs, one table

{_COMMON}{_COMPLETION}\
  --multirun     or -m: all combinations of values with commas, each a run in outputs/multirun

Values may be groups (data=cifar10 takes conf/data/cifar10.yaml) or single keys (training.lr=0.01).
{_RUN_CODES}"""
SERVER = f"""\
usage: run_server.py [key=value ...]      train an encoder with real clients that connect

  run_server.py                                       clients on this machine
  run_server.py host=0.0.0.0                          clients on a network, with TLS and keys
  run_server.py data.root=labelled.zip                evaluate the encoder with labelled images
  run_server.py resume=outputs/<name>/<date_time>     continue an interrupted run
  run_server.py resume=... federation.rounds=40       end a stopped one that has done 40
  run_server.py resume=... resume_round=12            go back to one of the last three checkpoints
  run_server.py queue=runs                            many runs, see orchestra-submit --help

Keys: orchestra-keys server host=<name or address of this machine>

{_COMMON}{_COMPLETION}
{_RUN_CODES}"""
SUBMIT = f"""\
usage: orchestra-submit queue=FOLDER [key=value ...]      add a run to a server's queue

  orchestra-server host=0.0.0.0 queue=runs              the server, which runs until it is stopped
  orchestra-submit queue=runs method=simclr seed=1      a run, checked before it is added
  orchestra-submit queue=runs --list                    all runs and their states
  orchestra-submit queue=runs cancel=0003               one that waits, or has begun

Keys are those of orchestra-server, except host, port, insecure, security, watch, logging.format and
logging.progress, which the server's own command sets, and the run folder, which is
FOLDER/NUMBER/run. The server's command must name packages of plugins= as well.
FOLDER is made by the server, and belongs to its user alone. A run that fails does not hold up the
others.

  --list         all runs; nothing is added
  --help         this text
  --version      of this program

{_CODES}"""
CLIENT = f"""\
usage: run_client.py server=HOST:PORT data.root=IMAGES [key=value ...]      take part

  run_client.py server=127.0.0.1:8443 data.root=photos            a server on this machine
  run_client.py server=example.org:8443 data.root=photos.zip      with keys in security/

Runs until it is stopped, reconnects by itself, and takes part in every run of its server.

{_COMMON}{_COMPLETION}
Exit code 0: stopped by Ctrl-C or SIGTERM, 1: it failed, 2: the configuration is wrong.
"""
EXPERIMENT = """\
usage: run_experiment.py experiment=NAME [key=value ...]      reproduce a table or figure

  run_experiment.py experiment=table6                        on digits, minutes for each run
  run_experiment.py experiment=table6 data.root=cifar10.zip  on photographs
  run_experiment.py experiment=table1 scale=paper            as in the paper, on GPUs
  run_experiment.py experiment=table1 only=Orchestra,cross-device seeds=0

  experiment=  {names}
  scale=       small, medium or paper (small)
  seeds=       of which each row is run, such as 0,1,2 (the experiment's own)
  only=        values of rows; rows with others on the same axes are left out
  transfer_root=  place of the other images that encoders are evaluated on (dec_ssl_table4)
  folder=      where all runs and the report are (outputs/experiments)
  jobs=        runs side by side (the scale's own)
  --list       the experiment's runs and their states; nothing is run
  --help       this text

Every other key=value is passed to every run, see run_sim.py --help. Runs that are complete in the
folder are not run again, whichever experiment they were made for, and those begun are resumed;
a failed one does not hold up the others. Stop it with Ctrl-C and start it again to continue.
The report, at any time: orchestra-report folder=FOLDER

Exit code 0: done, 1: runs failed, 2: the command is wrong and nothing was run,
130: stopped, 143: stopped by SIGTERM.
"""
EVALUATE = f"""\
usage: orchestra-evaluate run=RUN [key=value ...]      evaluate a saved encoder

  run=outputs/<name>/<date_time>                          on the run's own images
  run=encoder.safetensors data=cifar100 data.root=...     any encoder on other images (transfer)
  run=... protocols=[finetune] seeds=5                    1 % and 10 % of the labels

Prints a table and writes <run folder>/evaluation/<data set>.json.

{_COMMON}
{_CODES}"""
EMBED = f"""\
usage: orchestra-embed run=RUN images=IMAGES [key=value ...]      images to embeddings and a page

  run=outputs/<name>/<date_time> images=photos.zip        the encoder of a run, images in any layout
  run=encoder.safetensors images=photos format=parquet    another format: safetensors, npz, parquet
  run=... images=... page.pictures=beside                 larger pictures, in files beside the page

Writes embeddings.safetensors, embeddings.json and embeddings.html. The page shows the images on a
map, with nearest neighbours, clusters, near-duplicates and outliers; it holds small copies of them.
Stop it with Ctrl-C and start it again to continue.

{_HELP}{_ONE_GROUP.replace("data", "page")}{_OTHERS}
{_CODES}"""
LABEL = f"""\
usage: orchestra-label run=RUN images=IMAGES labels=LABELS [key=value ...]      a few labels to all

  run=... images=photos.zip labels=labels.csv    columns path and label; paths as in photos.zip
  run=... images=photos.zip labels=examples      a folder or zip with <class>/*

Fits logistic regression to the embeddings of the labelled images, at least five of each class, and
writes predictions.csv for all others, classifier.safetensors and labelling.json. The accuracy is
estimated by cross-validation on the labelled images.

{_HELP}{_OTHERS}
{_CODES}"""
COMPARE = f"""\
usage: orchestra-compare after=RUN images=IMAGES [key=value ...]      did training help?

  after=outputs/my-run images=photos.zip                       against what the run began with
  after=... before=outputs/other images=photos.zip             against another encoder
  after=... images=photos.zip labels=folders                   with the class folders of the images
  after=... images=photos.zip labels=labels.csv                columns path and label

Prints scores before and after, with labels the difference of kNN and linear probe with its 95 %
confidence interval, and a verdict. Writes comparison.html (nearest neighbours of some images by
both encoders) and comparison.json.

{_HELP}{_OTHERS}
{_CODES}"""
EXPORT = f"""\
usage: orchestra-export run=RUN [key=value ...]      a saved encoder for other runtimes

  run=outputs/<name>/<date_time>                    ONNX, checked by onnxruntime
  run=... int8=true                                 also in 8 bits, with its cost in accuracy
  run=... any_size=false                            only images of the encoder's size (TensorRT)
  run=encoder.safetensors format=torch_export       a graph for torch.export.load
  run=... format=timm                               a folder for timm.create_model("local-dir:...")
  run=... format=detectron2                         a ResNet's weights, for a detector
  run=... format=hub push_to_hub=owner/name         with a model card, for the Hugging Face hub

Prints a table and writes <run folder>/export/; format=hub writes <run folder>/hub/.

{_COMMON}
{_CODES}"""
TOP = f"""\
usage: orchestra-top server=HOST:PORT [key=value ...]      how a server or client is doing

  server=127.0.0.1:8444                   one that was started with watch.port=8444
  server=127.0.0.1:8444 once=true         print it once
  audit=outputs/<name>/<date_time>        check that no line of a run's audit log was changed

Stop it with Ctrl-C. A page with the same is at http://HOST:PORT/

{_HELP}{_OTHERS}
Exit code 0: done, 1: no status there, or a log that was changed, 2: the command is wrong.
"""
