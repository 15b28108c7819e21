import sys

from orchestra_flwr.__main__ import server

if __name__ == "__main__":
    sys.exit(server())
