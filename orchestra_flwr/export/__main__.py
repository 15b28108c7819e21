"""`python -m orchestra_flwr.export`: exports a saved encoder."""

from orchestra_flwr.cli import export_main

if __name__ == "__main__":
    raise SystemExit(export_main())
