"""`python -m orchestra_flwr.label`: labels for all images from a few."""

from orchestra_flwr.cli import label_main

if __name__ == "__main__":
    raise SystemExit(label_main())
