import sys

from orchestra_flwr.cli import main

if __name__ == "__main__":
    sys.exit(main())
