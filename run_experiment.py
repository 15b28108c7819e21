import sys

from orchestra_flwr.__main__ import experiment

if __name__ == "__main__":
    sys.exit(experiment())
