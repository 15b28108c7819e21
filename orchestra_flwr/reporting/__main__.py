"""`python -m orchestra_flwr.reporting FOLDER`: the former name of `orchestra_flwr.experiments`."""

import sys

from orchestra_flwr.experiments.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
