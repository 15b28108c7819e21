import sys

from orchestra_flwr.__main__ import client

if __name__ == "__main__":
    sys.exit(client())
