import sys

from orchestra_flwr.cli import client_main

if __name__ == "__main__":
    sys.exit(client_main())
