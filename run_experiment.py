import sys

from orchestra_flwr.cli import experiment_main

if __name__ == "__main__":
    sys.exit(experiment_main())
