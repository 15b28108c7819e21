import sys

from orchestra_flwr.cli import server_main

if __name__ == "__main__":
    sys.exit(server_main())
