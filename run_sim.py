import sys

from orchestra_flwr.__main__ import sim

if __name__ == "__main__":
    sys.exit(sim())
