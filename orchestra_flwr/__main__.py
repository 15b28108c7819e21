"""`python -m orchestra_flwr`: as `run_sim.py`."""

import sys

from orchestra_flwr.cli import main

if __name__ == "__main__":
    sys.exit(main())
