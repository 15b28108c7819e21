"""What the commands say of themselves, for --help."""

_COMMON = """\
  --help    this text and every key with its value; with data=cifar10 those of that choice
  --cfg     the composed configuration, nothing is run
"""
SIM = f"""\
usage: run_sim.py [key=value ...]      train an encoder in a simulated federation

  run_sim.py                                          digits, 10 clients, about two minutes
  run_sim.py data=image_folder data.root=photos.zip   your own images
  run_sim.py data=cifar10                             the paper's cross-device run
  run_sim.py resume=outputs/<name>/<date_time>        go on with an interrupted run

{_COMMON}
Values may be groups (data=cifar10 takes conf/data/cifar10.yaml) or single keys (training.lr=0.01).
Exit code 0: done, 1: the run failed, 2: the configuration is wrong, or the run folder is in use or
damaged, and nothing was written.
"""
SERVER = f"""\
usage: run_server.py [key=value ...]      train an encoder with real clients that connect

  run_server.py                                       clients on this machine
  run_server.py host=0.0.0.0                          clients on a network, with TLS and keys
  run_server.py data.root=labelled.zip                judge the encoder with labelled images
  run_server.py resume=outputs/<name>/<date_time>     go on with an interrupted run

Keys: python -m orchestra_flwr.deployment.keys server --host <name or address of this machine>

{_COMMON}
Exit code 0: done, 1: the run failed, 2: the configuration is wrong, or the run folder is in use or
damaged, and nothing was written.
"""
CLIENT = f"""\
usage: run_client.py server=HOST:PORT data.root=IMAGES [key=value ...]      take part

  run_client.py server=127.0.0.1:8443 data.root=photos            a server on this machine
  run_client.py server=example.org:8443 data.root=photos.zip      with keys in security/

Runs until it is stopped, reconnects by itself, and takes part in every run of its server.

{_COMMON}
Exit code 2: the configuration is wrong.
"""
EXPERIMENT = """\
usage: run_experiment.py experiment=NAME [key=value ...]      reproduce a table or figure

  run_experiment.py experiment=table6                        on digits, minutes for each run
  run_experiment.py experiment=table6 data.root=cifar10.zip  on photographs
  run_experiment.py experiment=table1 scale=paper            as the paper has it, on GPUs
  run_experiment.py experiment=table1 only=Orchestra,cross-device seeds=0

  experiment=  {names}
  scale=       paper or small (small)
  seeds=       of which each row is run, such as 0,1,2 (the experiment's own)
  only=        values of rows; rows with others on the same axes are left out
  folder=      where all runs and the report are (outputs/experiments)
  jobs=        runs side by side (the scale's own)
  --list       the experiment's runs and how they stand, nothing is run
  --help       this text

Every other key=value is given to every run, see run_sim.py --help. Runs that are complete in the
folder are not run again, whichever experiment they were made for, and those begun are resumed;
a failed one does not hold up the others. Stop it with Ctrl-C and start it again to go on.
The report, also of what there is so far: python -m orchestra_flwr.experiments FOLDER

Exit code 0: done, 1: runs failed, 2: the command is wrong and nothing was run,
130: stopped, 143: stopped by SIGTERM.
"""
EVALUATE = f"""\
usage: python -m orchestra_flwr.evaluation run=RUN [key=value ...]      judge a saved encoder

  run=outputs/<name>/<date_time>                          by the run's own images
  run=encoder.safetensors data=cifar100 data.root=...     any encoder by other images (transfer)
  run=... protocols=[finetune] seeds=5                    1 % and 10 % of the labels

Prints a table and writes <run folder>/evaluation/<data set>.json.

{_COMMON}
Exit code 0: done, 1: it failed, 2: the configuration is wrong and nothing was written.
"""
EXPORT = f"""\
usage: orchestra-export run=RUN [key=value ...]      a saved encoder for other runtimes

  run=outputs/<name>/<date_time>                    ONNX, checked by onnxruntime
  run=... int8=true                                 also in 8 bits, with what that costs in accuracy
  run=... any_size=false                            only images of the encoder's size (TensorRT)
  run=encoder.safetensors format=torch_export       a graph for torch.export.load
  run=... format=hub push_to_hub=owner/name         with a model card, for the Hugging Face hub

Prints a table and writes <run folder>/export/; format=hub writes <run folder>/hub/.

{_COMMON}
Exit code 0: done, 1: it failed, 2: the configuration is wrong and nothing was written.
"""
